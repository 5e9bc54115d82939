"""A Kafka-format commit log, mounted as files: the daemon, the tree it shows, the commands."""
