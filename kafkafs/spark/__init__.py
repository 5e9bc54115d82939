"""kafkafs as a Spark source and sink, and maintenance of large logs on Spark.

Neither the mount nor the storage package imports this package. Importing it alone imports neither
pyspark nor pyarrow, which come with the extra `spark-local`.
"""
