//! Requests of API nodes to workers.
