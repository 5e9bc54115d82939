"""Makes a broker's directory one of our own, or reverses that.

When a broker starts, it renames topics and partitions that are not in its metadata log, as stray
ones. So none are made in its directory until the user confirms that the broker will not return.
Detaching records the settings of the broker's topics (`broker_settings`). It then adds the suffix
`.detached` to the names by which a directory is a broker's. If a broker is started on a detached
directory, it refuses to, because of the directory `__cluster_metadata-0.detached`: it has no name
of a partition. Where there was no metadata log, it is empty.

After a crash, repeat the call: it completes the rest.
"""

from __future__ import annotations

import contextlib
import os

from storage import paths
from storage.directory.partition import read_topic_id
from storage.errors import InvalidConfig, PolicyViolation, UnusableFile
from storage.files import Files
from storage.settings import broker_settings
from storage.settings.broker_settings import BrokerSettings, BrokerTopic
from storage.settings.settings import Settings
from storage.state import manifest_file
from storage.state.tiered import TieredTopics

_NAMES = (paths.METADATA_LOG, paths.META_PROPERTIES)


def detach(files: Files, data_dir: str) -> list[str]:
    """Make the directory one of our own; durable. Only this process uses `data_dir`.

    Return a line for each ordinary topic whose settings are not known. Errors: InvalidConfig if no
    broker has written the directory, OSError.
    """
    if not names_to_set_aside(files, data_dir):
        return []
    settings = Settings(files, data_dir)
    found = paths.partitions_in(files.listing(data_dir))
    if not any(files.exists(_aside(data_dir, name)) for name in _NAMES):
        theirs = broker_settings.read(
            files,
            data_dir,
            settings.broker.kafkafs_broker_config,
            settings.broker.kafkafs_metadata_log_dir,
        )
        assert theirs is not None
        broker_settings.write(files, data_dir, theirs, found)
    # A topic whose settings cannot be read does not prevent the detach, which names it.
    tiered = TieredTopics(files, data_dir, Settings(files, data_dir, keeps_faulty=True))
    for topic, numbers in found.items():
        for number in numbers if tiered.why(topic) is None else ():
            # The manifest is older than the broker's deletions and cleanings.
            with contextlib.suppress(UnusableFile):  # the partition is a link
                manifest_file.drop(
                    files, os.path.join(data_dir, paths.partition_directory(topic, number))
                )
    log = os.path.join(data_dir, paths.METADATA_LOG)
    if not any(files.exists(each) for each in (log, _aside(data_dir, paths.METADATA_LOG))):
        files.mkdir(_aside(data_dir, paths.METADATA_LOG))
    for name in _NAMES:
        if files.exists(os.path.join(data_dir, name)):
            files.rename(os.path.join(data_dir, name), _aside(data_dir, name))
    files.sync_directory(data_dir)
    return not_known(files, data_dir)


def names_to_set_aside(files: Files, data_dir: str) -> list[str]:
    """Return the names to which detaching adds the suffix; none after it. Changes nothing. Errors:
    InvalidConfig if no broker has written the directory.
    """
    if not broker_settings.is_brokers(files, data_dir) and not broker_settings.is_detached(
        files, data_dir
    ):
        raise InvalidConfig("not the directory of a broker", path=data_dir)
    return [name for name in _NAMES if files.exists(os.path.join(data_dir, name))]


def not_known(files: Files, data_dir: str) -> list[str]:
    """Return a line for each ordinary topic whose settings are not known. Changes nothing."""
    settings = Settings(files, data_dir, keeps_faulty=True)
    tiered = TieredTopics(files, data_dir, settings)
    names = sorted(paths.partitions_in(files.listing(data_dir)))
    whys = {name: settings.why_no_deletion(name) for name in names if tiered.why(name) is None}
    return [f"{name}: {why}" for name, why in whys.items() if why is not None]


def tiered_lines(files: Files, data_dir: str) -> list[str]:
    """Return lines that name tiered topics and their remote offsets. Changes nothing."""
    tiered = TieredTopics(files, data_dir, Settings(files, data_dir, keeps_faulty=True))
    lines: list[str | None] = []
    for name in sorted(paths.partitions_in(files.listing(data_dir))):
        if tiered.why(name) is not None:
            lines += [tiered.line(name), tiered.remote_line(name)]
    return [line for line in lines if line is not None]


def undo(files: Files, data_dir: str) -> None:
    """Make the directory its broker's again; durable. Only this process uses `data_dir`.

    Errors: PolicyViolation if topics or partitions were made since, which the broker would rename;
    InvalidConfig if it was not detached; OSError.
    """
    names = names_to_give_back(files, data_dir)
    made = _aside(data_dir, paths.METADATA_LOG)
    if files.is_directory(made) and not files.listing(made):
        files.rmdir(made)
    for name in reversed(names):
        files.rename(_aside(data_dir, name), os.path.join(data_dir, name))
    files.sync_directory(data_dir)
    broker_settings.remove(files, data_dir)


def names_to_give_back(files: Files, data_dir: str) -> list[str]:
    """Return the names from which `undo` removes the suffix. Changes nothing. Errors: see
    `undo`.
    """
    aside = [name for name in _NAMES if files.exists(_aside(data_dir, name))]
    if paths.METADATA_LOG in aside and not files.listing(_aside(data_dir, paths.METADATA_LOG)):
        aside.remove(paths.METADATA_LOG)
    known = broker_settings.read_detached(files, data_dir)
    if not aside and known is None:
        raise InvalidConfig("this directory was not detached from a broker", path=data_dir)
    if known is not None:
        made = [
            paths.partition_directory(topic, number)
            for topic, numbers in sorted(paths.partitions_in(files.listing(data_dir)).items())
            for number in numbers
            if not _was_there(files, data_dir, known, topic, number)
        ]
        if made:
            raise PolicyViolation(
                "the broker would set aside partitions that were created after the detach: "
                f"{', '.join(made)}",
                path=data_dir,
            )
    return aside


def _was_there(files: Files, data_dir: str, known: BrokerSettings, topic: str, number: int) -> bool:
    """Return whether a partition existed at the detach, in the broker's topic of this name."""
    theirs = known.topics.get(topic, BrokerTopic(""))
    if number not in theirs.partitions:
        return False
    directory = os.path.join(data_dir, paths.partition_directory(topic, number))
    topic_id = read_topic_id(files, directory)
    return not (theirs.id and topic_id and theirs.id != topic_id)


def _aside(data_dir: str, name: str) -> str:
    return os.path.join(data_dir, name + paths.DETACHED)
