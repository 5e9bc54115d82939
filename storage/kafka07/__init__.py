"""What is particular to Kafka 0.7 and the message formats before v2.

`convert` rewrites them as v2 (`convert_entries` for 0.7's), `fetch` answers 0.7's fetch requests.
Its segments are `segment.old_segment`, its codec is `record.legacy_07`.
"""
