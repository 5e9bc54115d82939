"""What is set on a data directory and on its topics, and where that is written.

`config` has Kafka's names, defaults and rules; `settings` brings the files together that say
something: `kafkafs.properties` and each topic's own file (`setting_files`), and in a broker's
directory what the broker has written (`broker_settings`: its `server.properties` by
`java_properties`, its metadata log by `metadata_log`). `in_force` tells which of their values
counts. `messages` reads Kafka's own messages by the schemas of `message_schemas`; the dump of a log
uses it too.

It opens no log for writing and decides nothing about records.
"""
