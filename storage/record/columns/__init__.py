"""Records as columns, in Arrow's layout but without Arrow: for Spark, and for statistics.

`_columns` decodes batches into columns, the headers of records by `_header_column`. `_rows` goes
the other way: rows of columns become batches.

Both are compiled, and run without the GIL on plain pointers.
"""
