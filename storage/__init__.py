"""A commit log in the on-disk format of Apache Kafka: a library of its own."""
