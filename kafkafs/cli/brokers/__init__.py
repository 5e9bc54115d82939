"""Commands for the directories and files of Apache Kafka's brokers."""
