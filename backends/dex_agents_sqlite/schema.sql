-- Schema 1. Every value is JSON, so that an operator can read it with the sqlite3 shell.
-- `application_id` and `user_version` are set by the code that creates the file.

-- One row a session. `version` counts its transitions; `wake_at` says from when a worker is
-- needed (0: now, NULL: not until somebody changes the session); `owner` is a worker.
CREATE TABLE flow (
    flow_id    TEXT PRIMARY KEY,
    flow_type  TEXT NOT NULL,
    status     TEXT NOT NULL,
    version    INTEGER NOT NULL,
    wake_at    REAL,
    owner      TEXT,
    started_at REAL NOT NULL,
    header     BLOB NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX flow_by_wake_at ON flow (wake_at) WHERE wake_at IS NOT NULL;

-- Step executions that have not ended.
CREATE TABLE execution (
    flow_id      TEXT NOT NULL,
    execution_id TEXT NOT NULL,
    execution    BLOB NOT NULL,
    PRIMARY KEY (flow_id, execution_id)
) STRICT, WITHOUT ROWID;

-- Attributes; an instance of a map is named 'Map/key'.
CREATE TABLE attribute (
    flow_id TEXT NOT NULL,
    name    TEXT NOT NULL,
    value   BLOB NOT NULL,
    PRIMARY KEY (flow_id, name)
) STRICT, WITHOUT ROWID;

-- Messages that wait on Channels.
CREATE TABLE message (
    flow_id TEXT NOT NULL,
    channel TEXT NOT NULL,
    number  INTEGER NOT NULL,
    payload BLOB NOT NULL,
    PRIMARY KEY (flow_id, number)
) STRICT, WITHOUT ROWID;

-- What has happened, one line for each Step, RPC and failed attempt.
CREATE TABLE history (
    flow_id TEXT NOT NULL,
    seq     INTEGER NOT NULL,
    entry   BLOB NOT NULL,
    PRIMARY KEY (flow_id, seq)
) STRICT, WITHOUT ROWID;

-- Stream messages, trimmed from the old end. Positions rise within a Stream.
CREATE TABLE stream (
    position INTEGER PRIMARY KEY,
    flow_id  TEXT NOT NULL,
    stream   TEXT NOT NULL,
    payload  BLOB NOT NULL
) STRICT;

CREATE INDEX stream_by_flow ON stream (flow_id, stream);

-- Living workers. One whose lease has ended owns nothing any more.
CREATE TABLE worker (
    worker      TEXT PRIMARY KEY,
    lease_until REAL NOT NULL
) STRICT, WITHOUT ROWID;
