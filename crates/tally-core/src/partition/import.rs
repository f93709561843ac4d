//! Imports: counters and request ids of another server.

use super::Partition;
use crate::counter::CounterState;
use crate::event::{EventRef, RequestId};
use crate::import::{Existing, ImportPart, ImportedCounter};
use crate::outcome::{Outcome, Refusal};
use crate::request_ids::FirstOutcome;

impl Partition {
    pub(super) fn import(&mut self, event: &EventRef<'_>, imported: &ImportedCounter) -> Outcome {
        let Some(entries) = imported.entries_after(self.ledger_heads.head(event.key)) else {
            return self.refused(event, Refusal::LedgerDiffers);
        };
        let here = self.live_state(event);
        let state = match imported.part() {
            ImportPart::Last(state) => state.filter(|state| !state.is_expired(self.clock)),
            // The counter comes with the last part.
            ImportPart::Ledger => here,
        };
        let changes = !entries.is_empty() || state != here;
        if changes && here.is_some() && imported.existing() == Existing::Refuse {
            return self.refused(event, Refusal::NotExpected);
        }
        if state != here {
            self.put_state(event, state.as_ref());
        }
        for entry in entries {
            self.ledger_heads.push(event.key, entry.clone());
        }
        Outcome { applied: i64::from(changes), ..self.unchanged(event) }
    }

    /// Writes the counter as it is, or removes it.
    fn put_state(&mut self, event: &EventRef<'_>, state: Option<&CounterState>) {
        let found = self.table.find(event.hash, event.key.as_bytes());
        match (state, found) {
            (Some(state), found) => {
                let (_, expiry_before) = self.state_in(found);
                self.write_cell(found, expiry_before, event, state);
            }
            (None, Some(id)) => self.remove_counter(id),
            (None, None) => {}
        }
    }

    pub(super) fn import_request(
        &mut self,
        event: &EventRef<'_>,
        id: RequestId,
        mut imported: FirstOutcome,
        known: Option<FirstOutcome>,
    ) -> Outcome {
        // The clock of the other server may have been ahead. An imported id is remembered no longer than a new one.
        imported.at = imported.at.min(self.clock);
        let is_new = known.is_none() && !imported.is_expired(self.clock);
        if is_new {
            self.request_ids.insert(id, imported);
        }
        Outcome { applied: i64::from(is_new), ..self.unchanged(event) }
    }
}
