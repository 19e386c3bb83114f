//! The OS disk: two partition sets with the flags that decide which of them boots.
//!
//! The rules are those of signpost (which writes the flags) and of Bottlerocket's GRUB (which reads them).

use semver::Version;
use serde::{Deserialize, Serialize};

/// One of the two partition sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SetName {
    /// The first set, from which a new disk boots.
    A,
    /// The second set, empty on a new disk.
    B,
}

/// One partition set: its image and its boot flags.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionSet {
    /// The image on it; `None` if it is empty or was written in part.
    pub version: Option<Version>,
    /// Boot priority: the highest one is tried first, 0 never.
    pub priority: u8,
    /// Number of further boots tried before this set has to be marked successful.
    pub tries_left: u8,
    /// True after a successful boot.
    pub successful: bool,
}

impl PartitionSet {
    fn bootable(&self) -> bool {
        self.priority > 0 && (self.tries_left > 0 || self.successful)
    }
}

/// The disk, and the set that the running system came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// Set A.
    pub a: PartitionSet,
    /// Set B.
    pub b: PartitionSet,
    /// The set that runs (or ran last).
    pub active: SetName,
}

impl Disk {
    /// The disk of a machine that was installed with `version` and has booted it.
    pub fn installed(version: Version) -> Self {
        Self {
            a: PartitionSet { version: Some(version), priority: 1, tries_left: 0, successful: true },
            b: PartitionSet { version: None, priority: 0, tries_left: 0, successful: false },
            active: SetName::A,
        }
    }

    /// The set with this name.
    pub fn set(&self, name: SetName) -> &PartitionSet {
        match name {
            SetName::A => &self.a,
            SetName::B => &self.b,
        }
    }

    fn set_mut(&mut self, name: SetName) -> &mut PartitionSet {
        match name {
            SetName::A => &mut self.a,
            SetName::B => &mut self.b,
        }
    }

    /// The name of the set that does not run.
    pub fn inactive(&self) -> SetName {
        match self.active {
            SetName::A => SetName::B,
            SetName::B => SetName::A,
        }
    }

    /// The set that runs.
    pub fn active_set(&self) -> &PartitionSet {
        self.set(self.active)
    }

    /// The set that updates are written to.
    pub fn inactive_set(&self) -> &PartitionSet {
        self.set(self.inactive())
    }

    /// The set that boots next: the highest priority among the bootable ones, A when they are equal.
    pub fn next(&self) -> Option<SetName> {
        match (self.a.bootable(), self.b.bootable()) {
            (true, true) if self.b.priority > self.a.priority => Some(SetName::B),
            (true, _) => Some(SetName::A),
            (false, true) => Some(SetName::B),
            (false, false) => None,
        }
    }

    /// Clears the inactive set, as updog does before a download: it can no longer boot, and its image is lost.
    pub fn clear_inactive(&mut self) {
        let name = self.inactive();
        *self.set_mut(name) = PartitionSet { version: None, priority: 0, tries_left: 0, successful: false };
    }

    /// Writes `version` to the inactive set, as updog does after the download; it may be tried once, when it is armed.
    pub fn write_inactive(&mut self, version: Version) {
        let name = self.inactive();
        let set = self.set_mut(name);
        set.version = Some(version);
        set.tries_left = 1;
    }

    /// Arms the inactive set: the next boot takes it.
    ///
    /// # Errors
    /// updog's own text when the set was not prepared, or is armed or marked successful already.
    pub fn upgrade_to_inactive(&mut self) -> Result<(), String> {
        const STEP: &str = "Could not mark inactive partition for boot: Inactive partition /dev/xvda";
        let (active, inactive) = (self.active, self.inactive());
        let set = self.set_mut(inactive);
        if set.priority > 0 || set.successful {
            return Err(format!("{STEP} is already marked for upgrade"));
        }
        if set.tries_left == 0 {
            return Err(format!("{STEP} has not been marked valid for upgrade"));
        }
        set.priority = 2;
        self.set_mut(active).priority = 1;
        Ok(())
    }

    /// Disarms the inactive set. It keeps its image and its try, so that it can be armed again.
    pub fn cancel_upgrade(&mut self) {
        let (active, inactive) = (self.active, self.inactive());
        self.set_mut(inactive).priority = 0;
        self.set_mut(active).priority = 2;
    }

    /// Boots as GRUB does: takes the next set, spends one of its tries, and starts it. `None`: no set boots any more.
    pub fn boot(&mut self) -> Option<SetName> {
        let taken = self.next()?;
        let set = self.set_mut(taken);
        set.tries_left = set.tries_left.saturating_sub(1);
        self.active = taken;
        Some(taken)
    }

    /// Marks the running set successful, as a good boot does at its end.
    pub fn mark_successful_boot(&mut self) {
        let active = self.active;
        self.set_mut(active).successful = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v(text: &str) -> Version {
        Version::parse(text).unwrap()
    }

    fn prepared() -> Disk {
        let mut disk = Disk::installed(v("1.20.0"));
        disk.clear_inactive();
        disk.write_inactive(v("1.20.5"));
        disk
    }

    #[test]
    fn active_and_inactive_sets_swap_with_each_update() {
        let mut disk = prepared();
        disk.upgrade_to_inactive().unwrap();
        disk.boot();
        disk.mark_successful_boot();
        disk.clear_inactive();
        disk.write_inactive(v("1.21.0"));
        assert_eq!(disk.next(), Some(SetName::B));
        disk.upgrade_to_inactive().unwrap();
        assert_eq!(disk.boot(), Some(SetName::A));
        assert_eq!(disk.active_set().version, Some(v("1.21.0")));
    }

    #[test]
    fn previous_set_cannot_be_armed() {
        let mut disk = prepared();
        disk.upgrade_to_inactive().unwrap();
        disk.boot();
        disk.mark_successful_boot();
        assert!(disk.upgrade_to_inactive().unwrap_err().ends_with("is already marked for upgrade"));
    }
}
