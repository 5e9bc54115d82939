"""Where data directories are: on this machine, or in an object store.

`opened` is one that is open to be planned from, `arrow_files` and `open_object` read object
stores, `owner` reaches whoever may write.
"""
