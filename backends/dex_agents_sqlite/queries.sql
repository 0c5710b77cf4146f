-- name: load_flow
-- The columns outrank what the header says of them: a claim changes only the version.
SELECT header, version FROM flow WHERE flow_id = ?

-- name: load_executions
SELECT execution FROM execution WHERE flow_id = ?

-- name: load_messages
SELECT channel, number, payload FROM message WHERE flow_id = ? ORDER BY number

-- name: load_headers
SELECT header, version FROM flow ORDER BY started_at, flow_id

-- name: get_attribute
SELECT value FROM attribute WHERE flow_id = ? AND name = ?

-- name: scan_attributes
-- '0' follows '/', which every prefix ends with.
SELECT name, value FROM attribute WHERE flow_id = ? AND name >= ? AND name < ? ORDER BY name

-- name: load_history
SELECT entry FROM history WHERE flow_id = ? ORDER BY seq

-- name: read_stream
SELECT position, payload FROM stream
WHERE flow_id = ? AND stream = ? AND position > ? ORDER BY position LIMIT ?

-- name: insert_flow
INSERT INTO flow (flow_id, flow_type, status, version, wake_at, owner, started_at, header)
VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING

-- name: update_owned_flow
-- Changes no row when another process was first, or the flow has another owner now.
UPDATE flow SET status = ?, version = ?, wake_at = ?, header = ?
WHERE flow_id = ? AND version = ? AND owner = ?

-- name: update_flow
UPDATE flow SET status = ?, version = ?, wake_at = ?, header = ? WHERE flow_id = ? AND version = ?

-- name: put_execution
INSERT INTO execution (flow_id, execution_id, execution) VALUES (?, ?, ?)
ON CONFLICT DO UPDATE SET execution = excluded.execution

-- name: delete_execution
DELETE FROM execution WHERE flow_id = ? AND execution_id = ?

-- name: put_attribute
INSERT INTO attribute (flow_id, name, value) VALUES (?, ?, ?)
ON CONFLICT DO UPDATE SET value = excluded.value

-- name: delete_attribute
DELETE FROM attribute WHERE flow_id = ? AND name = ?

-- name: put_message
INSERT INTO message (flow_id, channel, number, payload) VALUES (?, ?, ?, ?)

-- name: delete_message
DELETE FROM message WHERE flow_id = ? AND number = ?

-- name: append_history
INSERT INTO history (flow_id, seq, entry) VALUES (?, ?, ?)

-- name: append_stream
INSERT INTO stream (flow_id, stream, payload) VALUES (?, ?, ?)

-- name: stream_size
SELECT coalesce(sum(length(payload)), 0) FROM stream WHERE flow_id = ? AND stream = ?

-- name: oldest_stream_messages
SELECT position, length(payload) FROM stream WHERE flow_id = ? AND stream = ? ORDER BY position

-- name: trim_stream
DELETE FROM stream WHERE flow_id = ? AND stream = ? AND position <= ?

-- name: find_due_flows
SELECT flow_id FROM flow
WHERE wake_at <= :now
  AND flow_type IN (SELECT value FROM json_each(:flow_types))
  AND (owner IS NULL OR owner NOT IN (
      SELECT worker FROM worker WHERE lease_until > :now AND lease_until <= :latest
  ))
ORDER BY wake_at LIMIT :limit

-- name: find_unclaimed_flows
SELECT flow_id FROM flow
WHERE wake_at <= :now
  AND (owner IS NULL OR owner NOT IN (
      SELECT worker FROM worker WHERE lease_until > :now AND lease_until <= :latest
  ))

-- name: claim_flow
-- The new version fences off whatever the former owner still wants to write.
UPDATE flow SET owner = :worker, version = version + 1
WHERE flow_id = :flow_id
  AND (owner IS NULL OR owner NOT IN (
      SELECT worker FROM worker WHERE lease_until > :now AND lease_until <= :latest
  ))

-- name: find_owned_due_flows
SELECT flow_id, version FROM flow WHERE wake_at <= ? AND owner = ?

-- name: find_owned_flow
SELECT version FROM flow WHERE flow_id = ? AND owner = ?

-- name: find_next_wake
SELECT min(wake_at) FROM flow
WHERE wake_at > :now AND flow_type IN (SELECT value FROM json_each(:flow_types))

-- name: renew_lease
INSERT INTO worker (worker, lease_until) VALUES (?, ?)
ON CONFLICT DO UPDATE SET lease_until = excluded.lease_until

-- name: forget_dead_workers
-- An hour after its end; one beyond the latest was written before the clock was set back.
DELETE FROM worker WHERE lease_until < :now - 3600 OR lease_until > :latest

-- name: release_flows
UPDATE flow SET owner = NULL WHERE owner = ?

-- name: end_lease
DELETE FROM worker WHERE worker = ?
