"""A client of Kafka's protocol: what a broker has, read and written over a connection.

`addresses` reads `kafka://` addresses, `properties` a client's properties with the credentials,
`tls` and `sasl` use them. `connection` has one broker's socket: requests go out and answers come
back in order, by the schemas of `message_schemas`, which `messages` encodes. `cluster` finds the
brokers and the leaders. `fetch` reads batches, `requests` has the other operations.

A broker is not trusted. The sizes of frames, CRCs, offsets, counts and names are checked, and no
call waits longer than 10 seconds without progress. It imports `storage.record`, `storage.errors`
and the readers of messages and of properties in `storage.settings`.
"""
