"""Commands that `kafkafs --help` does not list."""
