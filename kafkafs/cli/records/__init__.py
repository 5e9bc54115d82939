"""Commands that read and append records."""
