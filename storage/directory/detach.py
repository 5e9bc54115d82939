"""Makes a broker's directory one of our own, and takes that back.

A broker that comes back to its directory takes topics and partitions that its metadata log does not
know for stray, and renames them; so none are made there before the user says that it will not.
Detaching writes down what is known of its topics' settings (`broker_settings`), and then adds the
suffix `.detached` to the names that make the directory a broker's. A broker that is started on it
all the same refuses to, by that directory's name.

Both can be repeated: that does what a crash has left undone.
"""

from __future__ import annotations

import os

from storage import paths
from storage.errors import InvalidConfig, PolicyViolation
from storage.files import Files
from storage.settings import broker_settings
from storage.settings.broker_settings import BrokerTopic
from storage.settings.settings import Settings
from storage.state import book_file
from storage.state.tiered import TieredTopics

_NAMES = (paths.METADATA_LOG, paths.META_PROPERTIES)


def detach(files: Files, data_dir: str) -> list[str]:
    """Make the directory one of our own; durable. Only this process has `data_dir`.

    Returns a line for each ordinary topic whose settings are not known. Errors: InvalidConfig where
    no broker has written the directory, OSError.
    """
    if not names_to_set_aside(files, data_dir):
        return []
    settings = Settings(files, data_dir)
    found = paths.partitions_in(files.scan(data_dir))
    if not any(files.exists(_aside(data_dir, name)) for name in _NAMES):
        theirs = broker_settings.read(
            files,
            data_dir,
            settings.broker.kafkafs_broker_config,
            settings.broker.kafkafs_metadata_log_dir,
        )
        assert theirs is not None
        broker_settings.write(files, data_dir, theirs, found)
    tiered = TieredTopics(files, data_dir, settings)
    for topic, numbers in found.items():
        for number in numbers if tiered.why(topic) is None else ():
            # It is older than what the broker has deleted and cleaned.
            book_file.drop(files, os.path.join(data_dir, paths.partition_directory(topic, number)))
    for name in _NAMES:
        if files.exists(os.path.join(data_dir, name)):
            files.rename(os.path.join(data_dir, name), _aside(data_dir, name))
    files.sync_directory(data_dir)
    return not_known(files, data_dir)


def names_to_set_aside(files: Files, data_dir: str) -> list[str]:
    """Return the names to which detaching adds the suffix; none where that is done. Changes
    nothing.

    Errors: InvalidConfig where no broker has written the directory.
    """
    if not broker_settings.is_brokers(files, data_dir) and not broker_settings.is_detached(
        files, data_dir
    ):
        raise InvalidConfig("not the directory of a broker", path=data_dir)
    return [name for name in _NAMES if files.exists(os.path.join(data_dir, name))]


def not_known(files: Files, data_dir: str) -> list[str]:
    """Return a line for each ordinary topic whose settings are not known, before and after
    detaching. Changes nothing.
    """
    settings = Settings(files, data_dir, keeps_faulty=True)
    tiered = TieredTopics(files, data_dir, settings)
    names = sorted(paths.partitions_in(files.scan(data_dir)))
    whys = {name: settings.why_no_deletion(name) for name in names if tiered.why(name) is None}
    return [f"{name}: {why}" for name, why in whys.items() if why is not None]


def tiered_lines(files: Files, data_dir: str) -> list[str]:
    """Lines that name the tiered topics, and the offsets that are only in remote storage. Changes
    nothing.
    """
    tiered = TieredTopics(files, data_dir, Settings(files, data_dir, keeps_faulty=True))
    lines: list[str | None] = []
    for name in sorted(paths.partitions_in(files.scan(data_dir))):
        if tiered.why(name) is not None:
            lines += [tiered.line(name), tiered.remote_line(name)]
    return [line for line in lines if line is not None]


def undo(files: Files, data_dir: str) -> None:
    """Make it its broker's again; durable. Only this process has `data_dir`.

    Errors: PolicyViolation where topics or partitions have been made since, which the broker would
    set aside; InvalidConfig where it was not detached, OSError.
    """
    for name in reversed(names_to_give_back(files, data_dir)):
        files.rename(_aside(data_dir, name), os.path.join(data_dir, name))
    files.sync_directory(data_dir)
    broker_settings.remove(files, data_dir)


def names_to_give_back(files: Files, data_dir: str) -> list[str]:
    """Return the names from which undoing takes the suffix. Changes nothing, raises as `undo`."""
    aside = [name for name in _NAMES if files.exists(_aside(data_dir, name))]
    known = broker_settings.read_detached(files, data_dir)
    if not aside and known is None:
        raise InvalidConfig("this directory was not detached from a broker", path=data_dir)
    if known is not None:
        made = [
            paths.partition_directory(topic, number)
            for topic, numbers in sorted(paths.partitions_in(files.scan(data_dir)).items())
            for number in numbers
            if number not in known.topics.get(topic, BrokerTopic("")).partitions
        ]
        if made:
            raise PolicyViolation(
                "the broker would set aside partitions that were created after the detach: "
                f"{', '.join(made)}",
                path=data_dir,
            )
    return aside


def _aside(data_dir: str, name: str) -> str:
    return os.path.join(data_dir, name + paths.DETACHED)
