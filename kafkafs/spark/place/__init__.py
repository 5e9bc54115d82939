"""Data directories on a disk or in an object store.

`opened` locates one and opens it for planning, `arrow_files` and `open_object` read object stores,
`owner` sends requests to a directory's owner.
"""
