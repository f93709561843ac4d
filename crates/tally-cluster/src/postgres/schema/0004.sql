-- Which cluster this is, so that a node never takes an answer of another one for its own.

CREATE TABLE cluster (id uuid NOT NULL);
COMMENT ON TABLE cluster IS 'one row: the identity of the cluster';
INSERT INTO cluster (id) VALUES (gen_random_uuid());
