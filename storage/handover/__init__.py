"""Hands topics over to a broker: `handover` all of them, `handed_segment` each sealed segment."""
