"""Records as columns, in Arrow's layout but without Arrow: for Spark, and for statistics.

`_columns` decodes batches into columns: `_batch_survey` chooses the batches, `_column_rows` adds
their records, `_header_column` the headers of those. `_rows` goes the other way: rows of columns
become batches; `_cells` holds the buffers of the columns that it reads.

All of it is compiled, and runs without the GIL on plain pointers.
"""
