"""Commands that mount directories and show mounts."""
