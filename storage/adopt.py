"""Staged batches become one Kafka transaction, exactly once."""
