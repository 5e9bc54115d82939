"""The rules by which segments are deleted from a log: by time, by size, or by an installed policy.

`retention` has the rules and finds installed policies; `mtime` is Kafka 0.7's policy. No file, log
or clock is touched here: `directory.retain` gathers the facts and carries the decision out.
"""
