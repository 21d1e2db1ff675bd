//! `struct task_struct`.

use aya_ebpf::{
    helpers::generated::{bpf_get_current_ancestor_cgroup_id, bpf_get_current_task_btf},
    programs::BtfTracePointContext,
};
use tcpmon_common::name::{self, Name};

use super::{load, offset, present};

/// From `include/linux/sched.h`, the same in 5.10 to 7.3; a test compares it with what `/proc` shows for thread 2.
const PF_KTHREAD: u32 = 0x0020_0000;

/// `struct task_struct *`.
#[derive(Clone, Copy)]
pub struct Task(*const u8);

impl Task {
    /// The task at argument `N` of a tracepoint.
    #[inline(always)]
    pub fn argument<const N: usize>(ctx: &BtfTracePointContext) -> Self {
        Self(ctx.arg(N))
    }

    /// The running task.
    #[inline(always)]
    pub fn current() -> Self {
        // SAFETY: a helper without arguments; never null.
        Self(unsafe { bpf_get_current_task_btf() } as *const u8)
    }

    /// The task at `pointer`, unless that is null.
    #[inline(always)]
    pub fn new(pointer: *const u8) -> Option<Self> {
        if pointer.is_null() { None } else { Some(Self(pointer)) }
    }

    #[inline(always)]
    pub fn pointer(self) -> *const u8 {
        self.0
    }

    /// Thread id in the initial PID namespace.
    #[inline(always)]
    pub fn tid(self) -> u32 {
        // SAFETY: see `load`; the layout's offset of a field of `struct task_struct`.
        unsafe { load(self.0, offset!(task_tid)) }
    }

    /// Thread-group id.
    #[inline(always)]
    pub fn tgid(self) -> u32 {
        // SAFETY: see `tid`.
        unsafe { load(self.0, offset!(task_tgid)) }
    }

    /// The thread's name.
    #[inline(always)]
    pub fn comm(self) -> [u8; 16] {
        // SAFETY: see `tid`.
        unsafe { core::mem::transmute(load::<[u64; 2]>(self.0, offset!(task_comm))) }
    }

    /// All ones for a kernel thread, otherwise zero.
    #[inline(always)]
    fn kernel_mask(self) -> u64 {
        // SAFETY: see `tid`.
        let flags: u32 = unsafe { load(self.0, offset!(task_flags)) };
        ((flags & PF_KTHREAD != 0) as u64).wrapping_neg()
    }

    /// The name of the task's thread group. For a kernel thread, only the part before `/`, because each CPU has a
    /// thread of its own.
    #[inline(always)]
    pub fn process(self) -> Name {
        let all = self.leader_comm();
        let before = name::before_slash(all);
        let mask = self.kernel_mask();
        [before[0] & mask | all[0] & !mask, before[1] & mask | all[1] & !mask]
    }

    /// The name of its thread group's leader.
    #[inline(always)]
    fn leader_comm(self) -> Name {
        // SAFETY: see `tid`; the group leader outlives its threads.
        unsafe { load(load(self.0, offset!(task_leader)), offset!(task_comm)) }
    }

    /// Whether this is the task's [`process`](Self::process); cheaper than reading it, except for kernel threads.
    #[inline(always)]
    pub fn is_process(self, name: &Name) -> bool {
        let [low, high] = self.leader_comm();
        (low ^ name[0]) | (high ^ name[1]) == 0 || self.process() == *name
    }

    /// The task's thread-group id; 0 for kernel threads, which are not processes.
    #[inline(always)]
    pub fn process_id(self) -> u32 {
        self.tgid() & !(self.kernel_mask() as u32)
    }

    /// Time on a CPU, ns; up to date when `sched_switch` fires for the task that leaves the CPU.
    #[inline(always)]
    pub fn exec_ns(self) -> u64 {
        // SAFETY: see `tid`.
        unsafe { load(self.0, offset!(task_exec)) }
    }

    /// Time runnable but not running, ns; 0 if the kernel does not keep it.
    #[inline(always)]
    pub fn run_delay_ns(self) -> u64 {
        if present(offset!(task_run_delay)) {
            // SAFETY: see `tid`.
            unsafe { load(self.0, offset!(task_run_delay)) }
        } else {
            0
        }
    }

    /// Id of the task's control group (v2), which is the number of its directory's inode; 0 if it is not known.
    #[inline(always)]
    pub fn cgroup(self) -> u64 {
        if !present(offset!(task_cgroups)) {
            return 0;
        }
        // SAFETY: see `tid`; each of the four is a field of the structure to which the one before it points. A task
        // always has control groups.
        unsafe {
            let set: *const u8 = load(self.0, offset!(task_cgroups));
            let cgroup: *const u8 = load(set, offset!(css_set_cgroup));
            let node: *const u8 = load(cgroup, offset!(cgroup_node));
            load(node, offset!(node_id))
        }
    }

    /// Id of the running task's ancestor control group (v2) that is `level` levels below the root.
    #[inline(always)]
    pub fn current_ancestor_cgroup(level: u32) -> u64 {
        // SAFETY: a helper that takes a number.
        unsafe { bpf_get_current_ancestor_cgroup_id(level as i32) }
    }

    /// `__state`.
    #[inline(always)]
    pub fn state(self) -> u32 {
        // SAFETY: see `tid`.
        unsafe { load(self.0, offset!(task_state)) }
    }

    /// Whether the task has no BPF storage of any kind, and so is not a reader. Cheaper than looking up ours.
    #[inline(always)]
    pub fn has_no_storage(self) -> bool {
        // SAFETY: see `tid`.
        present(offset!(task_storage)) && unsafe { load::<u64>(self.0, offset!(task_storage)) } == 0
    }
}
