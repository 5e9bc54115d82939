"""Shortens the error of a wrong option or path to one line.

Spark prints an exception of a Python data source as a traceback, with all our frames. They help
nobody who has misspelt a topic.
"""

from __future__ import annotations

from contextlib import ContextDecorator


class OneLineErrors(ContextDecorator):
    """Removes our frames from the traceback of an expected error.

    It decorates the methods that Spark calls. Other exceptions are bugs, and keep their traceback.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            return
        # Spark loads the data source in each session.
        from kafkafs.spark.option_values import InvalidOption
        from storage.errors import StorageError

        if isinstance(error, InvalidOption | StorageError | OSError):
            # Python then continues without adding the frames of this call.
            error.__traceback__ = error.__cause__ = None


one_line_errors = OneLineErrors()
