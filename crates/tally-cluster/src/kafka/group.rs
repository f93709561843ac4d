//! The members of the group of workers, and the partitions they own.

use rdkafka::consumer::Consumer;

use super::{REQUEST_TIMEOUT, Tailer, TopicError};

/// A worker in the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupWorker {
    /// Where it answers API nodes.
    pub address: String,
    /// The partitions that it owns.
    pub partitions: Vec<u32>,
}

impl Tailer {
    /// The workers in a group, or `None` if there is no such group or it is rebalancing. Blocks for a round trip.
    pub fn group_workers(&self, group: &str) -> Result<Option<Vec<GroupWorker>>, TopicError> {
        let groups = self.consumer().fetch_group_list(Some(group), REQUEST_TIMEOUT);
        let groups = groups.map_err(|error| TopicError::new(self.settings(), &error))?;
        let Some(group) = groups.groups().iter().find(|found| found.name() == group) else { return Ok(None) };
        if group.state() != "Stable" {
            return Ok(None);
        }
        let worker = |member: &rdkafka::groups::GroupMemberInfo| {
            let partitions = assigned(member.assignment()?, &self.settings().topic)?;
            Some(GroupWorker { address: member.client_id().to_owned(), partitions })
        };
        Ok(group.members().iter().map(worker).collect())
    }
}

/// The partitions of a topic in an assignment of the consumer protocol: a version, topics with their partitions, and
/// data of the assignor. Numbers are big-endian.
fn assigned(mut bytes: &[u8], topic: &str) -> Option<Vec<u32>> {
    let mut partitions = Vec::new();
    take(&mut bytes, 2)?;
    for _ in 0..length(take(&mut bytes, 4)?)? {
        let name_bytes = length(take(&mut bytes, 2)?)?;
        let name = take(&mut bytes, name_bytes)?;
        for _ in 0..length(take(&mut bytes, 4)?)? {
            let partition = length(take(&mut bytes, 4)?)?;
            if name == topic.as_bytes() {
                partitions.push(u32::try_from(partition).ok()?);
            }
        }
    }
    Some(partitions)
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(taken)
}

/// A big-endian number; `None` if it is negative.
fn length(bytes: &[u8]) -> Option<usize> {
    let is_negative = bytes.first().is_none_or(|first| *first >= 0x80);
    (!is_negative).then(|| bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_assignment_is_read_and_one_that_is_cut_short_is_refused() {
        let mut bytes = vec![0, 1, 0, 0, 0, 2, 0, 1, b'x', 0, 0, 0, 1, 0, 0, 0, 9];
        bytes.extend([0, 5, b't', b'a', b'l', b'l', b'y', 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 1, 0]);
        assert_eq!(assigned(&bytes, "tally"), Some(vec![3, 256]));
        assert_eq!(assigned(&bytes, "other"), Some(vec![]));
        for len in 0..bytes.len() {
            assert_eq!(assigned(&bytes[..len], "tally"), None, "{len}");
        }
        assert_eq!(assigned(&[0, 1, 0xff, 0xff, 0xff, 0xff], "tally"), None);
    }
}
