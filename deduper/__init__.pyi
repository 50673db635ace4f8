"""The types of the public names; `__init__.py` loads each at its first use."""

from bucket_store.errors import CorruptionError as CorruptionError
from bucket_store.errors import FencedError as FencedError
from bucket_store.errors import SettingsChangedError as SettingsChangedError
from bucket_store.errors import StoreError as StoreError
from bucket_store.errors import StoreMissingError as StoreMissingError
from deduper.config.problems import ConfigError as ConfigError
from deduper.errors import CannotWriteError as CannotWriteError
from deduper.errors import DeduperError as DeduperError
from deduper.errors import IntegrityError as IntegrityError
from deduper.errors import NewCheckpointError as NewCheckpointError
from deduper.errors import OldCheckpointError as OldCheckpointError
from deduper.errors import OwnerAliveError as OwnerAliveError
from deduper.errors import UnfinishedWindowError as UnfinishedWindowError
from deduper.errors import UsageError as UsageError
from deduper.query.dedup import Deduper as Deduper
from deduper.query.ports import JsonSink as JsonSink
from deduper.query.ports import ParquetSink as ParquetSink
from deduper.query.ports import Ports as Ports
from deduper.query.ports import TopicSink as TopicSink
from deduper.query.ports import Window as Window
from deduper.query.published_windows import PublishedWindows as PublishedWindows
from deduper.query.rules import Category as Category
from deduper.query.rules import EventTime as EventTime
from deduper.query.rules import Never as Never
from deduper.query.rules import Ordered as Ordered
from deduper.query.rules import ProcessingTime as ProcessingTime
from deduper.ranges.batch.frames import range_aggregate as range_aggregate
from deduper.table.batch import Keep as Keep
from deduper.table.operations.changes import delete as delete
from deduper.table.operations.changes import load as load
from deduper.table.operations.changes import upsert as upsert
from deduper.table.operations.questions import filter_exists as filter_exists
from deduper.table.operations.questions import read as read
from deduper.table.operations.questions import tag as tag
from deduper.table.settings import load_config as _load_config

table_config = _load_config

__version__: str
DISTRIBUTION: str
__all__: list[str]
