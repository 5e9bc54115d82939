"""Schemas of keys and values: where they come from, and how they decode bytes to JSON.

`avro` compiles an Avro schema, and `_avro` has the loop that decodes. `registry_topic` reads the
schemas that a Confluent Schema Registry stores in the topic `_schemas`. `choice` finds the schema
of a key or a value, and `lines` decodes lines of the `jsonl` view. This package opens no files.
"""
