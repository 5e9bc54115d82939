"""What the owner of a data directory does for processes that may not write to it themselves.

`request_kinds` has their requests, as lines; `staged_orphans` removes staged files that no request
names.
"""
