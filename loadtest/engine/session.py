"""Where tailrate meets Locust: options, start, stop, and messages between master and workers.

The only or the master process holds a `Conductor`; each load process holds a `Driver` inside its one user. In a
single process they call each other; in a distributed run they send Locust messages:

    worker → master   tailrate_ready   this process has its payloads
    master → worker   tailrate_order   steps and a share of them    (driver.Order)
    worker → master   tailrate_prepared: ready for it; master → worker tailrate_start: when, or that it is off
    worker → master   tailrate_rows    record batches; tailrate_clock, tailrate_done, tailrate_process (its memory)
    worker → master   tailrate_failed  it can go on no longer, and why
    master → worker   tailrate_halt    stop sending, write down what is under way; tailrate_cut: wait for it
    both ways         tailrate_ping    whose clock stands where
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Protocol

import gevent
import psutil
from gevent.event import Event
from gevent.queue import Queue
from locust import LoadTestShape, events, runners
from locust.runners import STATE_MISSING, MasterRunner, WorkerRunner

from tailrate.analysis.records.folder import run_folder
from tailrate.analysis.records.loopback import is_loopback
from tailrate.loadtest.engine import modes
from tailrate.loadtest.engine.clock import Base, Offset
from tailrate.loadtest.engine.conductor import Conductor, spawn
from tailrate.loadtest.engine.endpoint import credentials, target
from tailrate.loadtest.engine.endpoint.answer import EndpointAnswer
from tailrate.loadtest.engine.endpoint.payloads import Inputs
from tailrate.loadtest.engine.endpoint.servers import Servers
from tailrate.loadtest.engine.endpoint.target import Target
from tailrate.loadtest.engine.live import same_origin, web
from tailrate.loadtest.engine.live.board import Board
from tailrate.loadtest.engine.live.screen import Screen
from tailrate.loadtest.engine.modes.soak import Soak
from tailrate.loadtest.engine.record.devices.collector import sources
from tailrate.loadtest.engine.record.provenance import command_line
from tailrate.loadtest.engine.record.segments import pack, unpack
from tailrate.loadtest.engine.scenario.scenario import DataPlan, Scenario, ScenarioError
from tailrate.loadtest.engine.soak.process_usage import PERIOD_S, ProcessUsage
from tailrate.loadtest.engine.workers import selfcheck
from tailrate.loadtest.engine.workers.driver import Driver
from tailrate.loadtest.engine.workers.locust_statistics import LocustStatistics
from tailrate.loadtest.engine.workers.on_time.cpu_priority import precedence
from tailrate.loadtest.engine.workers.on_time.memory import tidied_by_hand
from tailrate.loadtest.engine.workers.work_order import WorkOrder

say = logging.getLogger("tailrate")

READY_S = 60.0
SILENT_S = 10
"""A worker that says nothing for so long is lost. Locust gives it three seconds, which a busy machine exceeds."""
UNTRUSTED = 3
"""The exit code of a run that says nothing."""
PINGS, PING_S, LEAST_PING_S = 8, 0.005, 0.001
KEPT_S, MOST_KEPT = 60, 100
LOG_BYTES, LOGS = 5_000_000, 2
"""Size of a soak's log, and how many older ones are kept."""


class Session:
    """State of this process between two tests of the same Locust."""

    def __init__(self, environment: Any) -> None:
        self.environment = environment
        self.keys = credentials.read(environment.parsed_options)
        self.devices = sources(environment.parsed_options)
        self.home = _host(environment)
        """The endpoint that was named when this process began: a token is for no other."""
        self.orders: Queue[WorkOrder] = Queue()
        self.starts: Queue[int | None] = Queue()
        self.driver: Driver | None = None
        self.conductor: Conductor | None = None
        self.board = Board(Base.here())
        """Of the present run, or else of the last one."""
        self.screen = Screen()
        self.ready: dict[str, int] = {}
        """Members of the crew that hold their payloads, and their index."""
        self.priorities: dict[str, str] = {}
        self.files: dict[str, str] = {}
        """What each of them read as `--data`."""
        self.offsets: dict[str, Offset] = {}
        """Of each worker's monotonic clock, from pings."""
        self.over = False
        self.problem = ""

    @property
    def distributed(self) -> bool:
        return isinstance(self.environment.runner, MasterRunner)

    # ---- the crew, as the conductor sees it

    def members(self) -> list[str]:
        if not self.distributed:
            return list(self.ready)
        clients = self.environment.runner.clients
        return [name for name in self.ready if name in clients and clients[name].state != STATE_MISSING]

    def give(self, member: str, order: WorkOrder) -> None:
        self.ready[member] = order.index
        if self.distributed:
            self.environment.runner.send_message("tailrate_order", order.as_message(), member)
        else:
            self.orders.put(order)

    def start(self, member: str, start_ns: int | None) -> None:
        if self.distributed:
            self.environment.runner.send_message("tailrate_start", {"start_ns": start_ns}, member)
        else:
            self.starts.put(start_ns)

    def halt(self) -> None:
        if self.distributed:
            for member in self.members():
                self.environment.runner.send_message("tailrate_halt", None, member)
        elif self.driver is not None:
            self.driver.halt()

    def cut(self) -> None:
        if self.distributed:
            for member in self.members():
                self.environment.runner.send_message("tailrate_cut", None, member)
        elif self.driver is not None:
            self.driver.cut()

    def bases(self, members: Sequence[str], base: Base) -> Mapping[str, Base]:
        """From pings that are a moment old, so that a drift between two machines does no harm; one after the other, so
        that no answer waits for another."""
        if not self.distributed:
            return dict.fromkeys(members, base)
        self.offsets = {member: Offset() for member in members}
        for member in PINGS * list(members):
            self.environment.runner.send_message("tailrate_ping", {"t1": time.monotonic_ns()}, member)
            gevent.sleep(max(LEAST_PING_S, PING_S / len(members)))
        deadline = time.monotonic() + 1
        while not all(offset.least() for offset in self.offsets.values()) and time.monotonic() < deadline:
            gevent.sleep(PING_S)
        known = {member: offset.least() for member, offset in self.offsets.items()}
        return {member: base.for_clock(*least[:2]) if least else base for member, least in known.items()}

    def kill(self, member: str) -> bool:
        if self.distributed:
            self.environment.runner.send_message("tailrate_kill", None, member)
        return self.distributed

    def priority(self) -> str:
        return "; ".join(sorted(set(self.priorities.values())))

    def forget(self) -> None:
        """Locust counts each second of each endpoint, and errors by their text, for good: a soak has days of them."""
        stats, oldest = self.environment.stats, time.time() - KEPT_S
        for entry in (stats.total, *stats.entries.values()):
            for seconds in (entry.num_reqs_per_sec, entry.num_fail_per_sec):
                for second in [second for second in seconds if second < oldest]:
                    del seconds[second]
        del stats.history[:-MOST_KEPT]
        for key in list(stats.errors)[:-MOST_KEPT]:
            del stats.errors[key]

    # ---- what the crew reports

    def take(self, member: str, kind: str, content: dict[str, Any]) -> None:
        if kind == "ready":
            self.ready[member] = len(self.ready)
            self.priorities[member] = content["priority"]
            self.files[member] = content.get("file", "")
        elif kind == "failed":
            self.problem = self.problem or content["sentence"]
        elif self.conductor is None:
            return
        elif kind == "rows":
            self.conductor.on_rows(content["batch"])
        elif kind == "clock":
            self.conductor.on_clock([tuple(window) for window in content["windows"]])
        elif kind == "process":
            self.conductor.on_process(self.ready.get(member, -1), content)
        elif kind == "prepared":
            self.conductor.on_prepared(member)
        elif kind == "check":
            self.conductor.on_check(member, content)
        elif kind == "done":
            self.conductor.on_done(member, self.ready.get(member, -1), content)

    def report(self, kind: str, content: dict[str, Any]) -> None:
        """The driver's way to the conductor."""
        runner = self.environment.runner
        if not isinstance(runner, WorkerRunner):
            self.take("local", kind, content)
            return
        if kind == "rows":
            content = {"packed": pack(content["batch"])}
        runner.send_message(f"tailrate_{kind}", content)


class ScenarioUser(Protocol):
    """What is asked of a scenario, whose class is `user.EndpointUser`."""

    model: ClassVar[str]
    host: str | None
    environment: Any

    def __init__(self, environment: Any) -> None: ...

    @property
    def checker(self) -> Callable[[EndpointAnswer], str | None] | None: ...

    def draw(self, seed: int, rows: Sequence[int], data: DataPlan | None = None) -> Inputs: ...


_session: Session | None = None
_initialised = Event()
"""A worker listens to the master before Locust fires its init event, and may be told to start before that."""
_scenario_class: type[ScenarioUser] | None = None


def attach(user_class: type[ScenarioUser]) -> None:
    """Called for each scenario class; its attributes become the defaults of the options."""
    global _scenario_class
    if _scenario_class is not None:
        if issubclass(user_class, _scenario_class):  # one scenario, refined
            _scenario_class = user_class
        elif _scenario_class.__name__ != user_class.__name__:
            fail(f"one scenario at a time: {_scenario_class.__name__} or {user_class.__name__}, not both")
        return
    _scenario_class = user_class
    events.init_command_line_parser.add_listener(_on_parser)
    events.init.add_listener(_on_init)
    events.test_start.add_listener(_on_test_start)
    events.test_stopping.add_listener(_on_test_stopping)
    events.test_stop.add_listener(_on_test_stop)


def fail(sentence: str) -> NoReturn:
    """Bad input: one sentence, exit code 2, before any load."""
    print(f"tailrate: {sentence}", file=sys.stderr)
    sys.stderr.flush()
    # of `--processes`: Locust takes those that still look for their master for ended, and they look for five minutes
    for process in psutil.Process().children():
        process.kill()
    raise SystemExit(2)


def work(user: ScenarioUser) -> None:
    """The user's one task, until killed; Locust would begin a failed one again, with none of what it had been told."""
    session = _here()
    try:
        _follow(session, user)
    except ScenarioError as problem:
        session.report("failed", {"sentence": str(problem)})
    except Exception as problem:
        say.exception("this load process failed")
        session.report("failed", {"sentence": f"a load process failed: {type(problem).__name__}: {problem}"})
    while True:
        gevent.sleep(READY_S)


def _follow(session: Session, user: ScenarioUser) -> None:
    """Makes payloads, then follows orders."""
    scenario = _scenario(user.environment)
    inputs = user.draw(scenario.seed, scenario.rows, scenario.data)
    servers = Servers(scenario.timeout_s, session.keys)
    driver = Driver(
        servers,
        inputs,
        scenario.max_in_flight,
        session.report,
        LocustStatistics(user.environment),
        user.checker,
    )
    session.driver = driver
    teller: gevent.Greenlet[..., None] | None = None
    try:
        with tidied_by_hand(), precedence() as granted:
            session.report("ready", {"priority": granted, "file": inputs.file})
            if isinstance(scenario.mode, Soak):
                teller = gevent.spawn(_tell_footprint, session)
            while True:
                order = session.orders.get()
                driver.prepare(order)
                session.report("prepared", {})
                if (start_ns := session.starts.get()) is None:
                    continue
                order = replace(order, start_ns=start_ns)
                if order.answer:
                    figures = selfcheck.measure(order, inputs, scenario.timeout_s, scenario.max_in_flight)
                    session.report("check", figures)
                else:
                    driver.execute(order)
    finally:
        if teller is not None:
            teller.kill()
        session.driver = None
        servers.close()


def _tell_footprint(session: Session) -> None:
    own = ProcessUsage()
    while True:
        session.report("process", own.look())
        gevent.sleep(PERIOD_S)


# ---- Locust's events


def _usual() -> dict[str, Any]:
    """Our options' defaults, and the scenario's own."""
    assert _scenario_class is not None
    inherited = {key: value for kind in reversed(_scenario_class.__mro__) for key, value in vars(kind).items()}
    try:
        return modes.defaults(inherited)
    except ScenarioError as problem:
        fail(str(problem))


def _add_options(parser: Any) -> None:
    usual = _usual()
    for option in modes.OPTIONS:
        parser.add_argument(
            f"--{option.name}",
            env_var=f"LOCUST_{option.key.upper()}",
            type=type(option.default),
            default=usual[option.key],
            choices=option.choices,
            help=option.help,
            include_in_web_ui=not option.at_start,
        )


def _on_parser(parser: Any, **_: Any) -> None:
    assert _scenario_class is not None
    _add_options(parser)
    # Locust's own defaults are all interfaces
    parser.set_defaults(web_host=same_origin.LOOPBACK, master_bind_host=same_origin.LOOPBACK)


def _on_init(environment: Any, runner: Any, web_ui: Any = None, **_: Any) -> None:
    _initialise(environment, runner, web_ui)
    _initialised.set()


def _initialise(environment: Any, runner: Any, web_ui: Any) -> None:
    global _session
    try:
        _session = Session(environment)
        if web_ui is not None:
            same_origin.attach(web_ui)
    except ScenarioError as problem:
        fail(str(problem))
    if isinstance(runner, WorkerRunner):
        runner.register_message("tailrate_order", lambda msg, **_: _here().orders.put(WorkOrder.from_message(msg.data)))
        runner.register_message("tailrate_start", lambda msg, **_: _here().starts.put(msg.data["start_ns"]))
        # Locust before 2.47 gives no names to what it gives these
        runner.register_message("tailrate_halt", lambda *_, **__: _halt(), concurrent=True)
        # a planned fault: as if the kernel had done it
        runner.register_message("tailrate_kill", lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL), concurrent=True)
        runner.register_message("tailrate_cut", lambda **_: _here().cut())
        runner.register_message(
            "tailrate_ping",
            lambda msg, **_: runner.send_message("tailrate_ping", msg.data | {"t2": time.monotonic_ns()}),
        )
        # Ctrl-C reaches every process of a terminal: say what became of everything before Locust says goodbye
        environment.events.quitting.add_listener(lambda **_: _halt())
        _hear_ctrl_c()
        return
    if isinstance(runner, MasterRunner):
        runners.HEARTBEAT_LIVENESS = SILENT_S
        if not is_loopback(runner.master_bind_host):
            say.warning("whoever reaches port %s can be a worker: Locust asks for no password", runner.master_bind_port)
        for kind in ("ready", "prepared", "clock", "check", "done", "process", "failed"):
            runner.register_message(
                f"tailrate_{kind}", lambda msg, kind=kind, **_: _here().take(msg.node_id, kind, msg.data)
            )
        runner.register_message("tailrate_rows", _on_packed_rows)
        runner.register_message("tailrate_ping", _on_pong)
    environment.shape_class = OneUserPerProcess()  # type: ignore[no-untyped-call]
    environment.shape_class.runner = runner
    options = environment.parsed_options
    _hear_ctrl_c()
    if options.mode == Soak.name:
        _bound_logs()
    if web_ui is not None:
        web.attach(web_ui, options.web_base_path, lambda: _here().board)
    elif not (options.html_file or options.csv_prefix):  # nobody will read how percentiles went
        environment.stats.use_response_times_cache = environment.stats.total.use_response_times_cache = False
    if options.headless:
        # on a terminal our table takes the place of the one that Locust prints anew each second
        options.only_summary = options.only_summary or _here().screen.possible
        # with a load shape Locust installs its own handler only when the test is over
        gevent.signal_handler(signal.SIGTERM, os.kill, os.getpid(), signal.SIGINT)
    if options.headless or options.autostart:
        try:
            _prepare(_here())
        except ScenarioError as problem:
            fail(str(problem))


def _hear_ctrl_c() -> None:
    """Between two greenlets, from where it gets to the main one, and also where a shell started us in the background
    and has us ignore it: it is how a run is asked to end.

    Python's own handler would raise it in whichever greenlet is at work, such as the one that takes in the workers'
    rows: that would be the end of it, and of them.
    """

    def interrupt() -> None:
        raise KeyboardInterrupt

    gevent.get_hub().NOT_ERROR += (KeyboardInterrupt,)  # it is no error: gevent would print it into the table
    gevent.signal_handler(signal.SIGINT, interrupt)


def _bound_logs() -> None:
    """Log files begin anew when they are large."""
    for logger in (logging.getLogger(), logging.getLogger("locust")):
        for handler in [found for found in logger.handlers if type(found) is logging.FileHandler]:
            bounded = RotatingFileHandler(handler.baseFilename, maxBytes=LOG_BYTES, backupCount=LOGS)
            bounded.setFormatter(handler.formatter)
            logger.removeHandler(handler)
            logger.addHandler(bounded)
            handler.close()


def _on_packed_rows(msg: Any, **_: Any) -> None:
    for batch in unpack(msg.data["packed"]):
        _here().take(msg.node_id, "rows", {"batch": batch})


def _on_pong(msg: Any, **_: Any) -> None:
    if offset := _here().offsets.get(msg.node_id):
        offset.see(msg.data["t1"], msg.data["t2"], msg.data["t2"], time.monotonic_ns())


def _on_test_start(environment: Any, **_: Any) -> None:
    _initialised.wait()
    session = _here()
    session.ready.clear()
    session.priorities.clear()
    session.files.clear()
    session.problem = ""
    session.orders, session.starts = Queue(), Queue()
    if isinstance(environment.runner, WorkerRunner):
        return
    try:
        if session.conductor is None:
            _prepare(session)
    except ScenarioError as problem:
        _fail(session, str(problem))
        return
    if environment.parsed_options.headless:
        session.screen.start(session.board)
    gevent.spawn(_conduct, session)


def _fail(session: Session, sentence: str, exit_code: int | None = None) -> None:
    if exit_code is not None:
        session.environment.process_exit_code = exit_code
    say.error("%s", sentence)
    session.board.fail(sentence)
    session.over = True


def _prepare(session: Session) -> None:
    environment = session.environment
    session.board = Board(Base.here())
    session.board.status = "starting"
    scenario = _scenario(environment)
    options = environment.parsed_options
    targets = _targets(session, scenario)
    servers = Servers(scenario.timeout_s, session.keys)
    assert _scenario_class is not None
    run_dir, resumed = Path(options.run_dir), scenario.mode.resumes
    folder = Path(resumed) if resumed else run_folder(run_dir, options.run_id, scenario.name)
    command = command_line(["locust", *sys.argv[1:]])
    conductor = Conductor(scenario, servers, folder, command, session, session.board, session.devices)
    inputs = _scenario_class(environment).draw(scenario.seed, scenario.rows, scenario.data)
    conductor.prepare(targets, modes.protocol_settings(options), inputs)
    session.conductor = conductor


def _targets(session: Session, scenario: Scenario) -> list[Target]:
    """What `--endpoints` names, or the variants at `--host`."""
    options = session.environment.parsed_options
    if options.endpoints:
        if scenario.variants:
            raise ScenarioError("--variants is for --host; --endpoints names a version behind each #MODEL/")
        return target.parse(options.endpoints, scenario.model, options.protocol)
    host = _host(session.environment)
    if not host:
        raise ScenarioError("no endpoint given; say --host http://127.0.0.1:8000 (tailrate serve starts one)")
    if session.keys.common.token and host != session.home:
        raise ScenarioError("a token goes to the --host that Locust is started with, and to no other")
    whole = Target(host, scenario.model, protocol=options.protocol)
    return [replace(whole, version=variant) for variant in scenario.variants] or [whole]


def _host(environment: Any) -> str:
    """The endpoint that is asked for; one that must not be kept is forgotten, as Locust's page would show it."""
    host = str(environment.host or (_scenario_class and _scenario_class.host) or "")
    try:
        if host:
            credentials.address(host)
    except ScenarioError:
        environment.host = None
        raise
    return host


def _conduct(session: Session) -> None:
    """Waits until every load process has its payloads, then runs the plan."""
    conductor, runner = session.conductor, session.environment.runner
    assert conductor is not None
    asked = session.environment.parsed_options.expect_workers if session.distributed else 1
    conductor.wanted = max(1, asked, runner.worker_count)
    deadline = time.monotonic() + READY_S
    while len(session.members()) < conductor.wanted and not session.problem and time.monotonic() < deadline:
        gevent.sleep(0.05)
    if session.conductor is not conductor:  # stopped meanwhile
        return
    if session.problem:
        _fail(session, session.problem, 2)
        return
    if not session.members():
        _fail(session, f"no load process became ready within {READY_S:g} s", UNTRUSTED)
        return
    if len(found := {conductor.file, *session.files.values()}) > 1:
        _fail(session, f"load processes read different files as --data: {' and '.join(sorted(found))}", 2)
        return

    def on_end(problem: str | None) -> None:
        if problem:
            say.error("%s", problem)
            conductor.board.fail(problem)
            session.environment.process_exit_code = 2
        if session.conductor is conductor:  # else it was stopped, and the next test may be under way
            session.over = True

    spawn(conductor, on_end).join()


def _on_test_stopping(environment: Any, **_: Any) -> None:
    session = _here()
    session.over = False
    if session.distributed and session.board.status == "starting" and not environment.runner.worker_count:
        say.error("no load process is left, and nothing was sent")
        environment.process_exit_code = UNTRUSTED
    if isinstance(environment.runner, WorkerRunner):
        _halt()
    elif session.conductor is not None:
        session.conductor.abort()
        session.conductor = None


def _on_test_stop(**_: Any) -> None:
    """Before Locust says its last words."""
    _here().screen.stop()


def _halt() -> None:
    driver = _here().driver
    if driver is not None:
        driver.halt()


class OneUserPerProcess(LoadTestShape):
    """Locust counts users; here one user is one load process, and the test ends with the plan."""

    abstract = True

    def tick(self) -> tuple[int, float] | None:
        if _here().over:
            return None
        workers = max(1, _here().environment.runner.worker_count)
        return workers, min(workers, 100)


def _scenario(environment: Any) -> Scenario:
    assert _scenario_class is not None
    name = _scenario_class.__module__.rpartition(".")[2]
    try:
        return modes.from_options(name, _scenario_class.model, environment.parsed_options, _usual())
    except AttributeError as problem:  # Locust used as a library, without its options
        raise ScenarioError(f"an option is missing: {problem}") from None


def _here() -> Session:
    assert _session is not None, "Locust has not fired its init event"
    return _session
