-- How current the counters of best-effort namespaces are.

ALTER TABLE partitions ADD COLUMN summed_at bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN partitions.summed_at IS
    'everything that sub-counters had counted before this time is in the tables, in milliseconds since 1970; 0 if unknown';
