"""What the owner of a data directory does for others, who may not write to it themselves.

`request_kinds` are the lines in which it is asked and answers; `staged_orphans` finds and deletes
staged files that nobody asks for any more.
"""
