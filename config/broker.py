"""The broker's settings in force: what was set at start, what was changed since, and what nobody set.

| layer, strongest first | Kafka's source | given by |
|---|---|---|
| dynamic broker | 2 | /config/brokers/<id> |
| dynamic default | 3 | /config/brokers/<default> |
| static | 4 | command line, environment, file |
| own | 4 | definitions.OWN_DEFAULTS; on the embedded metadata store definitions.EMBEDDED_DEFAULTS |
| default | 5 | the table, or what the machine says (data_dir.py) |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from pybroker.config import data_dir, definitions, describing, values
from pybroker.config.definitions import Setting
from pybroker.config.describing import DEFAULT, DYNAMIC_BROKER, DYNAMIC_DEFAULT, STATIC, Described, Synonym
from pybroker.config.errors import ConfigError, NotDynamic
from pybroker.config.listeners import Endpoint, advertised, parse_listeners, parse_protocol_map

Text = str
Int = int
Float = float
Flag = bool
Texts = list[str]
Settings = Mapping[str, str]
Synonyms = list[Synonym]
Descriptions = list[Described]
Callbacks = list[Callable[[frozenset[str]], None]]

_PREFIXED = r"listener\.name\.[^.]*\.(?:[^.]+\.(?=sasl\.))?(.*)"
_SYNONYMS = {
    name: group
    for group in (
        ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
        ("log.roll.ms", "log.roll.hours"),
        ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    )
    for name in group
}
# Kafka lets these change only below listener.name.<listener>. (SslConfigs.RECONFIGURABLE_CONFIGS)
_ONLY_PER_LISTENER = frozenset(
    (
        "ssl.key.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
    )
)
_COMPUTED: dict[str, Callable[[], str]] = {
    "log.dir": lambda: str(data_dir.default_data_dir()),
    "queued.max.request.bytes": lambda: str(data_dir.request_memory()),
}


class Static(NamedTuple):
    """A value that was set at start; `origin` is for people: `server.properties:12`, `environment`, `--override`."""

    value: str
    origin: str


def find_setting(name: str) -> Setting | None:
    """The setting of that name, or the one below a `listener.name.<listener>.` prefix."""
    found = definitions.find(name)
    if found is None and (prefixed := re.match(_PREFIXED, name)):
        found = definitions.find(prefixed[1])
    return found


class BrokerConfig:
    """Settings by Kafka's names. Values are parsed when they are first asked for, and kept until they change.

    Asking for a name that isn't in the table raises KeyError. (The methods int, str and so on hide the types of the
    same name from annotations in this class: hence the aliases above it.)
    """

    def __init__(self, static: Mapping[Text, Static] | None = None, warnings: Iterable[Text] = ()) -> None:
        self.static = dict(static or {})
        self.warnings = list(warnings)
        self.dynamic: dict[Text, Text] = {}
        self.dynamic_defaults: dict[Text, Text] = {}
        self._values: dict[Text, Any] = {}
        self._callbacks: Callbacks = []

    @classmethod
    def of(cls, settings: Settings) -> BrokerConfig:
        """A configuration in which these were set at start, unchecked."""
        return cls({name: Static(value, "given") for name, value in settings.items()})

    # -- reading

    def get(self, name: Text) -> Any:
        """The value in force, in Python's type (values.py), None where Kafka has null."""
        try:
            return self._values[name]
        except KeyError:
            pass
        setting = find_setting(name)
        if setting is None:
            raise KeyError(name)
        text = self.text(name)
        value = self._values[name] = None if text is None else setting.parse(text)
        return value

    def int(self, name: Text) -> Int:
        value = self.get(name)
        assert isinstance(value, int), name
        return value

    def float(self, name: Text) -> Float:
        return float(self.get(name))

    def bool(self, name: Text) -> Flag:
        value = self.get(name)
        assert isinstance(value, bool), name
        return value

    def str(self, name: Text) -> Text:
        value = self.get(name)
        assert isinstance(value, str), name
        return value

    def opt_str(self, name: Text) -> Text | None:
        value: Text | None = self.get(name)
        return value

    def opt_int(self, name: Text) -> Int | None:
        value: Int | None = self.get(name)
        return value

    def list(self, name: Text) -> Texts:
        """Items of a LIST, or of a STRING that Kafka takes apart at commas, such as log.dirs; empty for null."""
        value = self.get(name)
        if isinstance(value, str):
            return [item.strip() for item in value.split(",") if item.strip()]
        return [*value] if value else []

    def text(self, name: Text) -> Text | None:
        """The value in force as it would be written."""
        synonyms = self._layers(name)
        return synonyms[0].value if synonyms else None

    def source(self, name: Text) -> Text:
        """Where the value in force was set, for people."""
        if name in self.dynamic:
            return "dynamic broker"
        if name in self.dynamic_defaults:
            return "dynamic default"
        if name in self.static:
            return self.static[name].origin
        if name in definitions.OWN_DEFAULTS:
            return "pybroker"
        return "embedded" if name in self._own_defaults() else "default"

    def is_set(self, name: Text) -> Flag:
        """Whether anybody set it, be it to its default."""
        return name in self.dynamic or name in self.dynamic_defaults or name in self.static

    def _own_defaults(self) -> dict[Text, Text]:
        return definitions.OWN_DEFAULTS if self.zookeeper else definitions.EMBEDDED_DEFAULTS

    def _layers(self, name: Text) -> Synonyms:
        """Every layer that has this very name, strongest first."""
        found = []
        if (text := self.dynamic.get(name)) is not None:
            found.append(Synonym(name, text, DYNAMIC_BROKER))
        if (text := self.dynamic_defaults.get(name)) is not None:
            found.append(Synonym(name, text, DYNAMIC_DEFAULT))
        if (static := self.static.get(name)) is not None:
            found.append(Synonym(name, static.value, STATIC))
        elif (text := self._own_defaults().get(name)) is not None:
            found.append(Synonym(name, text, STATIC))
        if (text := default_text(name)) is not None:
            found.append(Synonym(name, text, DEFAULT))
        return found

    def throttle(self, name: Text) -> Int | None:
        """A setting of definitions_throttles, which counts only where it was set while running; None for no limit."""
        text = self.dynamic.get(name, self.dynamic_defaults.get(name))
        return None if text is None else int(definitions.setting(name).parse(text))

    # -- what several settings say together

    @property
    def zookeeper(self) -> Text:
        """Where ZooKeeper is, empty for the embedded metadata store."""
        static = self.static.get("zookeeper.connect")
        return static.value.strip() if static is not None else ""

    @property
    def log_dirs(self) -> Texts:
        return self.list("log.dir" if self.get("log.dirs") is None else "log.dirs")

    @property
    def protocol_map(self) -> dict[Text, Text]:
        protocols = parse_protocol_map(self.str("listener.security.protocol.map"))
        if not self.is_set("listener.security.protocol.map"):
            # As Kafka does in KRaft mode: a controller listener needs no entry while nothing is secured.
            for name in self.controller_listener_names:
                protocols.setdefault(name, "PLAINTEXT")
        return protocols

    @property
    def controller_listener_names(self) -> Texts:
        return [name.upper() for name in self.list("controller.listener.names")]

    @property
    def listeners(self) -> tuple[Endpoint, ...]:
        """The listeners to open, without those of a KRaft controller. Raises ConfigError."""
        hidden = self.controller_listener_names
        found = parse_listeners("listeners", self.str("listeners"), self.protocol_map)
        return tuple(endpoint for endpoint in found if endpoint.name not in hidden)

    @property
    def advertised_listeners(self) -> tuple[Endpoint, ...]:
        """What clients are told to connect to; a port 0 is to be replaced by the bound one. Raises ConfigError."""
        text = self.opt_str("advertised.listeners")
        if text:
            hidden = self.controller_listener_names
            found = parse_listeners("advertised.listeners", text, self.protocol_map)
            return tuple(endpoint for endpoint in found if endpoint.name not in hidden)
        origin = self.source("listeners")
        return advertised(self.listeners, default=origin in ("default", "--port"))

    @property
    def inter_broker_listener(self) -> Text:
        """The name of the listener that brokers use among each other."""
        name = self.opt_str("inter.broker.listener.name")
        return (name or self.str("security.inter.broker.protocol")).upper()

    # -- changing while running

    def on_change(self, callback: Callable[[frozenset[Text]], None]) -> None:
        """Call back with the names of the settings whose value in force has changed, after every change."""
        self._callbacks.append(callback)

    def apply_dynamic(self, broker: Settings, defaults: Settings) -> Texts:
        """Put these in place of all dynamic settings, and return what of them had to be left out and why.

        What the metadata store holds may have been written by anyone, so a bad entry mustn't stop the good ones.
        """
        complaints: Texts = []
        before = {name: self.text(name) for name in {*self.dynamic, *self.dynamic_defaults, *broker, *defaults}}
        self.dynamic = self._usable(broker, complaints, per_broker=True)
        self.dynamic_defaults = self._usable(defaults, complaints, per_broker=False)
        changed = frozenset(name for name, text in before.items() if self.text(name) != text)
        for name in changed:
            self._values.pop(name, None)
        if changed:
            for callback in self._callbacks:
                callback(changed)
        return complaints

    def _usable(self, settings: Settings, complaints: Texts, *, per_broker: Flag) -> dict[Text, Text]:
        usable = {}
        for name, text in settings.items():
            setting = find_setting(name)
            try:
                if setting is not None:
                    if not setting.dynamic:
                        raise NotDynamic(f"{name} can't be changed while the broker runs")
                    if setting.per_broker and not per_broker:
                        raise NotDynamic(f"{name} can't be set for all brokers at once")
                    setting.parse(text)
                usable[name] = text
            except ConfigError as error:
                complaints.append(error.message)
        return usable

    def validate_dynamic(self, settings: Settings, *, per_broker: Flag) -> None:
        """Check what somebody wants to set, for this broker or as default of all (DynamicBrokerConfig.validate).

        `settings` are all that would then be set on that level. Raises ConfigError, which brokers answer with error 42.
        """
        known = {name: find_setting(name) for name in settings}
        _refuse(
            [name for name, setting in known.items() if setting is not None and not setting.dynamic],
            "Cannot update these configs dynamically",
        )
        _refuse(
            [name for name in settings if name in _ONLY_PER_LISTENER],
            "These security configs can be dynamically updated only per-listener using the listener prefix",
        )
        for name, setting in known.items():
            if setting is not None:
                setting.parse(settings[name])
        if not per_broker:
            _refuse(
                [name for name, setting in known.items() if setting is not None and setting.per_broker],
                "Cannot update these configs at default cluster level, broker id must be specified",
            )
        from pybroker.config.consistency import contradictions, refused_sizes  # which need this module

        candidate = BrokerConfig(self.static)
        candidate.dynamic = dict(settings) if per_broker else self.dynamic
        candidate.dynamic_defaults = self.dynamic_defaults if per_broker else dict(settings)
        for problem in (*contradictions(candidate), *refused_sizes(self, candidate)):
            raise ConfigError(problem)

    # -- telling (Kafka's ConfigHelper)

    def synonyms(self, name: Text) -> tuple[Synonym, ...]:
        """Everything that sets this setting or would, strongest first; a sensitive value is None.

        Kafka drops what comes before the first entry of the name itself: log.retention.ms, which has no default,
        has no synonyms until it is set, though log.retention.hours counts meanwhile.
        """
        names = _synonym_names(name)
        found = [entry for one in names for entry in self._layers(one)]
        found.sort(key=lambda entry: entry.source)  # stable: by name within a layer
        own = next((index for index, entry in enumerate(found) if entry.name == name), len(found))
        setting = find_setting(name)
        if setting is None or setting.sensitive:
            return tuple(entry._replace(value=None) for entry in found[own:])
        return tuple(found[own:])

    def describe(self, keys: Collection[Text] | None = None) -> Descriptions:
        """All settings of this broker, or those of `keys` (None and empty mean all; unknown names are left out)."""
        names = {name: None for name in definitions.names() if name not in definitions.INTERNAL}
        names.update(dict.fromkeys((*self.static, *self.dynamic, *self.dynamic_defaults)))
        return [self._described(name, self.synonyms(name)) for name in names if not keys or name in keys]

    def describe_defaults(self, keys: Collection[Text] | None = None) -> Descriptions:
        """The dynamic settings for all brokers: what DescribeConfigs says of the broker with the empty name."""
        found = []
        for name in self.dynamic_defaults:
            if not keys or name in keys:
                entries = tuple(entry for entry in self.synonyms(name) if entry.source == DYNAMIC_DEFAULT)
                found.append(self._described(name, entries)._replace(value=entries[0].value if entries else None))
        return found

    def _described(self, name: Text, synonyms: tuple[Synonym, ...]) -> Described:
        setting = find_setting(name)
        # Kafka takes a name that it doesn't know for a secret.
        sensitive = setting is None or setting.sensitive
        value = None
        if setting is not None and not sensitive:
            own = self._layers(name)
            if own and own[0].value is not None:
                value = values.render(setting.kind, setting.parse(own[0].value))
        return Described(
            name,
            value,
            synonyms[0].source if synonyms else DEFAULT,
            # Of a throttle and a name below listener.name.<listener> Kafka says read-only, though they may change.
            (exact := definitions.find(name)) is None or not exact.dynamic or not definitions.is_listed(name),
            sensitive,
            synonyms,
            describing.TYPE_CODES[setting.kind] if setting else 0,
            setting.help if setting else "",
        )


def default_text(name: str) -> str | None:
    """The default of a setting as it would be written, None for none and for unknown names."""
    if (compute := _COMPUTED.get(name)) is not None:
        return compute()
    setting = definitions.find(name)
    return None if setting is None else setting.default


def _synonym_names(name: str) -> tuple[str, ...]:
    if prefixed := re.match(_PREFIXED, name):
        return (name, prefixed[1])
    return _SYNONYMS.get(name, (name,))


def _refuse(names: list[str], why: str) -> None:
    if names:
        raise NotDynamic(f"{why}: Set({', '.join(names)})")
