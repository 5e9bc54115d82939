"""`kafkafs config DATA_DIR [TOPIC]`: shows a topic's settings, and changes them without a mount."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from kafkafs.cli import one_line_errors
from kafkafs.cli.addresses import data_dir_argument
from kafkafs.printable import lines


@click.command("config")
@data_dir_argument(needs="files")
@click.argument("topic", metavar="[TOPIC", required=False)
@click.argument("changes", metavar="[NAME=VALUE|NAME=]...]", nargs=-1)
@click.option(
    "--broker-config", metavar="FILE", help="The server.properties of the broker of DATA_DIR."
)
@click.option(
    "--metadata-log-dir", metavar="DIR", help="Where that broker keeps __cluster_metadata-0."
)
def command(
    data_dir: str,
    topic: str | None,
    changes: Sequence[str],
    broker_config: str | None,
    metadata_log_dir: str | None,
) -> None:
    """Show the settings of TOPIC, or change them: NAME=VALUE sets, NAME= goes back to the default.

    Shown are NAME=VALUE for what is set on the topic, then # NAME=VALUE (where it comes from) for
    all else that is in force. Without TOPIC: what the data directory's kafkafs.properties says,
    and the defaults. Changes are judged as Kafka does, all together: all are made or none.
    Durations may be written as 7d, 12h, 30m, 5s, sizes as 10GiB, 512MiB, 64KiB.

    What is set on the topics of a broker's directory is read from its metadata log, and from the
    broker's file, once that is named by --broker-config (kafkafs.properties remembers the path).
    Nothing is deleted or compacted of a topic while it is not known what the broker would keep;
    mounting says so, and .kafkafs/topics.

    DATA_DIR may be mounted where settings are only shown; write to TOPIC/.config to change them
    there.
    """
    from kafkafs.tree.control.topic_config import config_text, defaults_text
    from storage.directory.manager import LogManager, check_topic
    from storage.files import Files
    from storage.settings.settings import Settings

    path = data_dir
    values = dict(_parsed(change) for change in changes)
    named = {
        "kafkafs.broker.config": broker_config,
        "kafkafs.metadata.log.dir": metadata_log_dir,
    }
    given = {name: os.path.realpath(place) for name, place in named.items() if place is not None}
    if given and topic is not None:
        raise click.UsageError("--broker-config and --metadata-log-dir hold for all topics")
    with one_line_errors():
        if given:
            _set_places(path, given)
            return
        if topic is not None and values:
            with LogManager.settings_of(path, topic) as settings:
                settings.change_topic(topic, values)
            return
        files = Files(path)
        if topic is not None:
            check_topic(files, path, topic)
        else:
            files.scan(path)
        settings = Settings(files, path)
        text = defaults_text(settings) if topic is None else config_text(settings, topic)
    click.echo(lines(text), nl=False)


def _set_places(path: str, given: dict[str, str]) -> None:
    """Store the paths of a broker's settings. StorageError, OSError."""
    from storage.directory.manager import LogManager
    from storage.settings import broker_settings
    from storage.settings.settings import set_default

    with LogManager.alone(path) as files:
        broker_settings.check_places(
            files, path, given.get("kafkafs.broker.config"), given.get("kafkafs.metadata.log.dir")
        )
        for name, place in given.items():
            set_default(files, path, name, place)


def _parsed(change: str) -> tuple[str, str | None]:
    """(name, value or None for the default); click's BadParameter."""
    name, equals, value = (part.strip() for part in change.partition("="))
    if not equals or not name:
        raise click.BadParameter(f"{change!r} is not NAME=VALUE")
    return name, value or None
