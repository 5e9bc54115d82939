"""Where data directories are: on a disk or in an object store.

`location` locates one, `followed_directory` opens it for planning, `arrow_files` and `open_object`
read object stores, `owner_client` sends requests to a directory's owner.
"""
