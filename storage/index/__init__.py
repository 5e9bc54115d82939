"""The sparse indexes beside a segment's log: derived data, rebuilt from the log when in doubt."""
