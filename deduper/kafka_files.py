"""The files that a login needs, certificates and keys: are they there, may they be read, do they hold today?"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from deduper.certificates import validities
from deduper.concerns import Concern, error, warning
from deduper.config import Config
from deduper.kafka_errors import KafkaOptionsError
from deduper.kafka_findings import accesses
from deduper.kafka_options import librdkafka_options

_FILES = {
    "ssl.ca.location": "certificates of authorities",
    "ssl.certificate.location": "our certificate",
    "ssl.key.location": "our key",
    "ssl.keystore.location": "our key store",
}
_WITH_CERTIFICATES = ("ssl.ca.location", "ssl.certificate.location")
_SOON = timedelta(days=14)


def file_concerns(config: Config, now: datetime | None = None) -> list[Concern]:
    """What is wrong with the files that the options name."""
    now = datetime.now(UTC) if now is None else now
    found: dict[Path, list[Concern]] = {}
    for access in accesses(config):
        try:
            options = librdkafka_options(access.servers, access.options)
        except KafkaOptionsError:
            continue
        for option, what in _FILES.items():
            path = Path(options.get(option, ""))
            if options.get(option) and not (option == "ssl.ca.location" and options[option] == "probe"):
                is_pem = option in _WITH_CERTIFICATES and path.is_file()
                concerns = list(_of_file(f"{access.place}.options", path, what, now, is_pem=is_pem))
                found[path] = found.get(path) or concerns
    return [concern for concerns in found.values() for concern in concerns]


def _of_file(place: str, path: Path, what: str, now: datetime, *, is_pem: bool) -> Iterator[Concern]:
    try:
        if path.is_dir():
            return  # of authorities; OpenSSL looks there itself
        with path.open("rb") as stream:
            data = stream.read()
    except FileNotFoundError:
        yield error("files", place, f"{path} ({what}) is not there", "put it there, or correct the path")
        return
    except OSError as exc:
        remedy = "let the user that runs the job read it"
        yield error("files", place, f"{path} ({what}) cannot be read: {exc.strerror}", remedy)
        return
    if not is_pem:
        return
    try:
        held = validities(data.decode("utf-8", "replace"))
    except ValueError as exc:
        yield error("files", place, f"{path} ({what}): {exc}", "make the file anew")
        return
    if not held:
        yield error("files", place, f"{path} ({what}) holds no certificate in PEM form", "make the file anew")
        return
    # The first is one's own; of authorities one that holds is enough.
    own = held[:1] if what == _FILES["ssl.certificate.location"] else held
    if all(one.not_after <= now for one in own):
        ended = max(one.not_after for one in own)
        yield error("files", place, f"{path} ({what}) has expired on {_day(ended)}", "renew it")
    elif all(one.not_before > now for one in own):
        begin = min(one.not_before for one in own)
        remedy = "set this machine's clock right, or wait"
        yield error("files", place, f"{path} ({what}) holds only from {_day(begin)} on, and it is {_day(now)}", remedy)
    elif all(one.not_after <= now + _SOON for one in own):
        ending = max(one.not_after for one in own)
        yield warning("files", place, f"{path} ({what}) expires on {_day(ending)}", "renew it before")


def _day(when: datetime) -> str:
    return when.strftime("%Y-%m-%d %H:%M UTC")
