-- Statements from one schema version to the next, between lines of dashes. Released ones never change; new ones are appended.
--------
PRAGMA application_id = 1936745320;
CREATE TABLE chats (id INTEGER PRIMARY KEY, title TEXT NOT NULL, updated_at REAL NOT NULL, deleted_at REAL);
CREATE TABLE messages (id INTEGER PRIMARY KEY, chat_id INTEGER NOT NULL REFERENCES chats (id), role TEXT NOT NULL,
  content TEXT NOT NULL, created_at REAL NOT NULL, finish_reason TEXT);
CREATE INDEX messages_of_chat ON messages (chat_id);
CREATE TABLE events (id INTEGER PRIMARY KEY, message_id INTEGER NOT NULL REFERENCES messages (id), line TEXT NOT NULL);
CREATE INDEX events_of_message ON events (message_id);
--------
ALTER TABLE messages ADD COLUMN answers INTEGER REFERENCES messages (id);
ALTER TABLE messages ADD COLUMN chosen INTEGER NOT NULL DEFAULT 1;
CREATE TABLE drafts (id INTEGER PRIMARY KEY, text TEXT NOT NULL);
--------
-- A chat becomes a tree: the parent of a reply is its prompt, the parent of a prompt is the reply before it (or the
-- prompt, if that has no reply). Messages with the same parent are versions, one of which is chosen.
ALTER TABLE messages RENAME COLUMN answers TO parent;
CREATE INDEX messages_of_parent ON messages (parent);
UPDATE messages SET parent = (SELECT max(p.id) FROM messages p WHERE p.chat_id = messages.chat_id AND p.role = 'user'
  AND p.id < messages.id) WHERE parent IS NULL;
UPDATE messages SET parent = coalesce((SELECT r.id FROM messages r WHERE r.parent = messages.parent AND r.role =
  'assistant' ORDER BY r.chosen DESC, CASE WHEN r.chosen THEN -r.id ELSE r.id END LIMIT 1), parent) WHERE role = 'user'
  AND parent IS NOT NULL;
--------
ALTER TABLE chats ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0;
ALTER TABLE chats ADD COLUMN system TEXT NOT NULL DEFAULT '';
-- Row ids in the index: of messages their own, of titles the negative id of the chat.
CREATE VIRTUAL TABLE search USING fts5 (text, tokenize = 'unicode61 remove_diacritics 2', prefix = '1 2 3');
ALTER TABLE messages ADD COLUMN indexed INTEGER NOT NULL DEFAULT 0;
ALTER TABLE chats ADD COLUMN indexed INTEGER NOT NULL DEFAULT 0;
CREATE INDEX messages_to_index ON messages (id) WHERE indexed = 0;
CREATE INDEX chats_to_index ON chats (id) WHERE indexed = 0;
CREATE INDEX prompts ON messages (id) WHERE role = 'user';
--------
CREATE TABLE attachments (id INTEGER PRIMARY KEY, message_id INTEGER REFERENCES messages (id) ON DELETE CASCADE,
  draft_id INTEGER, kind TEXT NOT NULL, name TEXT NOT NULL, text TEXT NOT NULL, tokens INTEGER, path TEXT NOT NULL
  DEFAULT '');
CREATE INDEX attachments_of_message ON attachments (message_id);
CREATE INDEX attachments_of_draft ON attachments (draft_id);
--------
ALTER TABLE chats ADD COLUMN thinking INTEGER;
--------
ALTER TABLE messages ADD COLUMN model TEXT NOT NULL DEFAULT '';
--------
-- Attachments are indexed with their prompt.
UPDATE messages SET indexed = 0 WHERE id IN (SELECT message_id FROM attachments);
--------
ALTER TABLE chats ADD COLUMN news INTEGER NOT NULL DEFAULT 0;
--------
-- What a reply thought; NULL if it was stored before, with marks around its thinking in the content.
ALTER TABLE messages ADD COLUMN thinking TEXT;
--------
-- An identity that exports state, so that an import finds the chat again.
ALTER TABLE chats ADD COLUMN uid TEXT NOT NULL DEFAULT '';
UPDATE chats SET uid = lower(hex(randomblob(16)));
CREATE INDEX chats_by_uid ON chats (uid);
--------
-- The text of a message becomes a list of typed parts. `part_of` takes thinking out of a text that has marks around it.
-- The table of messages is made anew, as some versions of SQLite cannot drop a column.
CREATE TABLE parts (id INTEGER PRIMARY KEY, message_id INTEGER NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
  kind TEXT NOT NULL, text TEXT NOT NULL);
CREATE INDEX parts_of_message ON parts (message_id);
CREATE TEMP TABLE marked AS SELECT id, content, (SELECT line FROM events WHERE message_id = m.id
  AND line LIKE '{"record": "admitted"%' ORDER BY events.id LIMIT 1) AS line FROM messages m
  WHERE thinking IS NULL AND role = 'assistant';
UPDATE messages SET thinking = (SELECT part_of('thinking', CAST(content AS BLOB), CAST(line AS BLOB)) FROM marked
  WHERE marked.id = messages.id), content = (SELECT part_of('text', CAST(content AS BLOB), CAST(line AS BLOB))
  FROM marked WHERE marked.id = messages.id) WHERE id IN (SELECT id FROM marked);
DROP TABLE marked;
INSERT INTO parts (message_id, kind, text) SELECT id, 'thinking', thinking FROM messages WHERE thinking != '';
INSERT INTO parts (message_id, kind, text) SELECT id, 'text', content FROM messages WHERE content != '';
CREATE TABLE new_messages (id INTEGER PRIMARY KEY, chat_id INTEGER NOT NULL REFERENCES chats (id), role TEXT NOT NULL,
  created_at REAL NOT NULL, finish_reason TEXT, parent INTEGER REFERENCES messages (id), chosen INTEGER NOT NULL
  DEFAULT 1, indexed INTEGER NOT NULL DEFAULT 0, model TEXT NOT NULL DEFAULT '');
INSERT INTO new_messages SELECT id, chat_id, role, created_at, finish_reason, parent, chosen, indexed, model
  FROM messages;
DROP TABLE messages;
ALTER TABLE new_messages RENAME TO messages;
CREATE INDEX messages_of_chat ON messages (chat_id);
CREATE INDEX messages_of_parent ON messages (parent);
CREATE INDEX messages_to_index ON messages (id) WHERE indexed = 0;
CREATE INDEX prompts ON messages (id) WHERE role = 'user';
--------
-- Calls of tools and their results are parts: the name of the tool, and what joins a result to its call.
ALTER TABLE parts ADD COLUMN name TEXT NOT NULL DEFAULT '';
ALTER TABLE parts ADD COLUMN call_id TEXT NOT NULL DEFAULT '';
--------
-- Names of the MCP servers that are on, one a line.
ALTER TABLE chats ADD COLUMN servers TEXT NOT NULL DEFAULT '';
