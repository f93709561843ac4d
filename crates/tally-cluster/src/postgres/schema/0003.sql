-- Where the clock of a partition was last reset.

ALTER TABLE partitions ADD COLUMN clock_reset bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN partitions.clock_reset IS
    'the position after the last reset of the partition''s clock; 0 if there was none';
