"""The source: `reader` for batch queries, `stream_reader` for streaming ones.

`options` become `source_options`, partitions and their ends `assigned` offsets (`offsets`), those
become what tasks read (`planning`, `stream_plan`), and what they read becomes `rows`. What should
be there and is not is `data_loss`.
"""
