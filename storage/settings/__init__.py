"""The settings of a data directory and of its topics, and their files.

`config` has Kafka's names, defaults and rules; `settings` combines the files: `kafkafs.properties`
and each topic's own file (`setting_files`), and in a broker's directory those of the broker
(`broker_settings`: its `server.properties` by `java_properties`, its metadata log by
`metadata_log`). `in_force` decides which of their values counts. `messages` reads Kafka's own
messages by the schemas of `message_schemas`; the dump of a log uses it too.

No log is opened for writing, and nothing is decided about records.
"""
