//! The label `cgroup`: what the path of a control group means to an operator, and which pod and container it names.
//!
//! The label is short, the same after a restart where possible, and has few values: numbers that are new for each login
//! or command are left out. docs/operating.md has this as a table.

use std::hash::{Hash, Hasher};

/// Maximum length of a label, characters.
const LONGEST: usize = 64;

/// Digits of a container's id that are shown, as in `docker ps`.
const ID: usize = 12;

/// Prefixes of the scopes that systemd's cgroup driver makes for containers; the id follows.
const SCOPES: [(&str, &str); 9] = [
    ("docker-", "docker"),
    ("libpod-payload-", "podman"),
    ("libpod-conmon-", "podman"),
    ("libpod-", "podman"),
    ("cri-containerd-", "containerd"),
    ("containerd-", "containerd"),
    ("nerdctl-", "containerd"),
    ("crio-conmon-", "crio"),
    ("crio-", "crio"),
];

/// Parents of containers under the cgroupfs driver, where the id is the whole name.
const PARENTS: [(&str, &str); 5] = [
    ("docker", "docker"),
    ("libpod_parent", "podman"),
    ("default", "containerd"),
    ("k8s.io", "containerd"),
    ("moby", "docker"),
];

/// A control group, from its path. Two with the same label are equal.
#[derive(Clone, Debug, Default)]
pub struct Cgroup {
    /// Value of the label `cgroup`.
    pub label: String,
    /// UID of the Kubernetes pod, with dashes except for static pods; empty outside pods.
    pub pod_uid: String,
    /// The 64 digits that the container's runtime knows it by; empty if the path has none.
    pub container_id: String,
}

impl Cgroup {
    /// The control group of a process, from one path per hierarchy: the container, if one of the paths is one,
    /// otherwise the first path that is not a root. A runtime may place its containers in one hierarchy only.
    pub(super) fn of_paths(paths: &[String]) -> Option<Self> {
        let cgroups = || paths.iter().map(|path| Self::of_path(path));
        let container = cgroups().find(|cgroup| !cgroup.container_id.is_empty());
        container.or_else(|| cgroups().find(|cgroup| cgroup.label != "/")).or_else(|| cgroups().next())
    }

    /// The control group with this path, as in `/proc/PID/cgroup`.
    pub(super) fn of_path(path: &str) -> Self {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let mut cgroup = pod(&parts)
            .or_else(|| container(&parts))
            .unwrap_or_else(|| Self::named(unit(&parts).unwrap_or_else(|| format!("/{}", parts.join("/")))));
        if let Some((end, _)) = cgroup.label.char_indices().nth(LONGEST) {
            cgroup.label.truncate(end);
        }
        cgroup
    }

    /// A control group that is not a container.
    pub(super) fn named(label: impl Into<String>) -> Self {
        Self { label: label.into(), ..Self::default() }
    }
}

impl PartialEq for Cgroup {
    fn eq(&self, other: &Self) -> bool {
        self.label == other.label
    }
}

impl Eq for Cgroup {}

impl PartialOrd for Cgroup {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Cgroup {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.label.cmp(&other.label)
    }
}

impl Hash for Cgroup {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.label.hash(state);
    }
}

/// The pod of a path, and the container in it.
///
/// Its name is `kubepods-burstable-pod<uid>.slice` (with `_` in the uid, and with the prefix `kubelet-` under kind), or
/// `pod<uid>` somewhere below `kubepods`. A static pod's uid is 32 digits without dashes.
fn pod(parts: &[&str]) -> Option<Cgroup> {
    let below = parts.iter().position(|part| part.contains("kubepods"))?;
    (below..parts.len()).rev().find_map(|place| {
        let part = parts[place];
        // Some runtimes write `<slice>:cri-containerd:<id>`.
        let name = part.split(':').next().unwrap_or(part);
        let name = name.strip_suffix(".slice").map_or(name, |slice| slice.rsplit('-').next().unwrap_or(slice));
        let uid = name.strip_prefix("pod")?.replace('_', "-");
        let is_uid = uid.len() >= 32 && uid.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
        if !is_uid {
            return None;
        }
        let id = parts[place..].iter().find_map(|part| {
            let name = part.strip_suffix(".scope").unwrap_or(part);
            let name = name.rsplit(':').next().unwrap_or(name);
            let id = name.rsplit('-').next().unwrap_or(name);
            is_id(id).then_some(id)
        });
        let label = id.map_or_else(|| format!("pod/{uid}"), |id| format!("pod/{uid}/{}", &id[..ID]));
        Some(Cgroup { label, container_id: id.unwrap_or_default().to_owned(), pod_uid: uid })
    })
}

/// The innermost container outside Kubernetes.
fn container(parts: &[&str]) -> Option<Cgroup> {
    (0..parts.len()).rev().find_map(|place| {
        let mut part = unescaped(parts[place]);
        // `system.slice:docker:<id>`: written for systemd's driver.
        if let [_, runtime, id] = part.split(':').collect::<Vec<_>>()[..] {
            part = format!("{runtime}-{id}");
        }
        let name = part.strip_suffix(".scope").unwrap_or(&part);
        if let Some(machine) = name.strip_prefix("machine-").filter(|_| part.ends_with(".scope")) {
            return Some(Cgroup::named(format!("machine/{machine}")));
        }
        if let Some(machine) = part.strip_prefix("systemd-nspawn@").and_then(|rest| rest.strip_suffix(".service")) {
            return Some(Cgroup::named(format!("machine/{machine}")));
        }
        if let Some(lxc) = part.strip_prefix("lxc.payload.").or_else(|| part.strip_prefix("lxc.monitor.")) {
            return Some(Cgroup::named(format!("lxc/{lxc}")));
        }
        if place > 0 && parts[place - 1] == "lxc" {
            return Some(Cgroup::named(format!("lxc/{part}")));
        }
        let scope = SCOPES.iter().find_map(|(prefix, runtime)| Some((name.strip_prefix(prefix)?, *runtime)));
        let parent = place.checked_sub(1).and_then(|parent| PARENTS.iter().find(|(name, _)| *name == parts[parent]));
        let (id, runtime) = scope.or_else(|| parent.map(|(_, runtime)| (name, *runtime)))?;
        let label = || format!("{runtime}/{}", &id[..ID]);
        is_id(id).then(|| Cgroup { container_id: id.to_owned(), ..Cgroup::named(label()) })
    })
}

/// 64 hexadecimal digits.
fn is_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The innermost systemd unit, without the parts that are new for each login or command.
fn unit(parts: &[&str]) -> Option<String> {
    let is_unit = |part: &&&str| [".service", ".scope", ".slice"].iter().any(|kind| part.ends_with(kind));
    let unit = parts.iter().rfind(is_unit)?;
    let (name, kind) = unit.rsplit_once('.')?;
    let user = || parts.iter().find(|part| part.starts_with("user-") && part.ends_with(".slice"));
    if name.starts_with("session-") && kind == "scope"
        || *unit == "init.scope" && user().is_some()
        || name.starts_with("user@") && kind == "service"
    {
        return user().map(|slice| unescaped(slice));
    }
    if name.starts_with("run-") && is_drawn(name) {
        return Some(format!("run-*.{kind}"));
    }
    Some(unescaped(&format!("{}.{kind}", application(name, kind))))
}

/// `run-r<hex>`, `run-u<number>`, `run-p<pid>-i<inode>`, `run-<pid>`: names that systemd-run gives to units without a
/// name.
fn is_drawn(name: &str) -> bool {
    let mut words = name.split('-').skip(1).peekable();
    let is_drawn = |word: &str| {
        let digits = word.strip_prefix(['r', 'u', 'p', 'i']).unwrap_or(word);
        digits.bytes().any(|byte| byte.is_ascii_digit()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    words.peek().is_some() && words.all(is_drawn)
}

/// A unit's name without the number or uuid that is new for each start.
///
/// This applies to `app-<launcher>-<name>-<number>.scope` and `app-<launcher>-<name>@<uuid>.service` of the XDG
/// convention, to other scopes of desktops (`vte-spawn-<uuid>.scope`), and to instances that are connections.
fn application(name: &str, kind: &str) -> String {
    if let Some((template, instance)) = name.split_once('@') {
        let is_drawn = is_connection(instance) || instance.len() >= 32 && is_random(instance);
        return if is_drawn { template.to_owned() } else { name.to_owned() };
    }
    if kind != "scope" {
        return name.to_owned();
    }
    let mut words: Vec<&str> = name.split('-').collect();
    while words.len() > 1 && words.last().is_some_and(|word| is_random(word)) {
        words.pop();
    }
    words.join("-")
}

/// systemd's name of the instance for an accepted connection: `12-10.0.0.1:22-10.0.0.2:5555`, or `12-<pid>-<uid>`.
fn is_connection(instance: &str) -> bool {
    let is_number = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    let mut words = instance.split('-');
    let is_first = words.next().is_some_and(is_number);
    is_first && (instance.contains(':') || words.clone().count() >= 2 && words.all(is_number))
}

/// A number, or a part of a uuid: four or more hexadecimal digits, at least one of which is not a letter.
fn is_random(text: &str) -> bool {
    let digits = text.bytes().filter(u8::is_ascii_digit).count();
    let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex && digits > 0 && (digits == text.len() || text.len() >= 4)
}

/// Undoes systemd's escapes such as `\x2d`; anything else stays as it is.
fn unescaped(name: &str) -> String {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let [first, after @ ..] = rest {
        let escaped = after.strip_prefix(b"x").and_then(|hex| std::str::from_utf8(hex.get(..2)?).ok());
        match escaped.filter(|_| *first == b'\\').and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CONTAINER: &str = "9e073649debeec6d511391c9ec7627ee67ce3a3fb508b0fa0437a97f8e58ba98";

    #[track_caller]
    fn becomes(cases: &[(&str, &str)]) {
        for (path, expected) in cases {
            let path = path.replace("ID", CONTAINER);
            let cgroup = Cgroup::of_path(&path);
            assert_eq!(cgroup.label, *expected, "{path}");
            // Everything that the label is made from is complete.
            let mut label = cgroup.label.split('/');
            let (kind, uid, id) = (label.next(), label.next().unwrap_or_default(), label.next().unwrap_or_default());
            match kind {
                Some("pod") => assert_eq!((&*cgroup.pod_uid, cgroup.container_id.get(..id.len())), (uid, Some(id))),
                Some("docker" | "podman" | "containerd" | "crio") => {
                    assert_eq!((&*cgroup.pod_uid, &*cgroup.container_id), ("", CONTAINER), "{path}");
                }
                _ => assert_eq!((&*cgroup.pod_uid, &*cgroup.container_id), ("", ""), "{path}"),
            }
        }
    }

    #[test]
    fn a_pod_is_its_uid_and_its_container_whatever_the_driver_the_runtime_and_the_class() {
        becomes(&[
            (
                "/kubepods.slice/kubepods-burstable.slice/\
                 kubepods-burstable-pod40934a46_d409_4f4a_bb8b_1ec0b0436320.slice/cri-containerd-ID.scope",
                "pod/40934a46-d409-4f4a-bb8b-1ec0b0436320/9e073649debe",
            ),
            (
                "/kubepods.slice/kubepods-besteffort.slice/\
                 kubepods-besteffort-pod5759a1ae_36ca_48a8_b20a_b0b5c8a90fb8.slice/docker-ID.scope",
                "pod/5759a1ae-36ca-48a8-b20a-b0b5c8a90fb8/9e073649debe",
            ),
            (
                "/kubepods.slice/kubepods-pod019c1fe8_0d92_4aa0_b61c_4df58bdde71c.slice/crio-ID.scope/container",
                "pod/019c1fe8-0d92-4aa0-b61c-4df58bdde71c/9e073649debe",
            ),
            (
                "/kubepods/burstable/podf6db0af0-0855-4bab-b25b-c853f18d0ce2/ID",
                "pod/f6db0af0-0855-4bab-b25b-c853f18d0ce2/9e073649debe",
            ),
            (
                "/kubepods/pod31dd0274-bb43-4975-bdbc-7e10047a23f8/ID",
                "pod/31dd0274-bb43-4975-bdbc-7e10047a23f8/9e073649debe",
            ),
            // Docker Desktop.
            (
                "/kubepods/kubepods/besteffort/pod6bd2a4d3-a55a-4450-b6fd-2a7ecc72c904/ID",
                "pod/6bd2a4d3-a55a-4450-b6fd-2a7ecc72c904/9e073649debe",
            ),
            // kind: its nodes are containers.
            (
                "/system.slice/docker-ID.scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/\
                 kubelet-kubepods-burstable-pod26822839_8c92_4c60_a921_ffc5991fa00f.slice/cri-containerd-ID.scope",
                "pod/26822839-8c92-4c60-a921-ffc5991fa00f/9e073649debe",
            ),
            // A static pod.
            (
                "/kubepods.slice/kubepods-burstable.slice/\
                 kubepods-burstable-podd3ab14aaf1a1b6f1d4bc4ac4cd1d9d1f.slice/cri-containerd-ID.scope",
                "pod/d3ab14aaf1a1b6f1d4bc4ac4cd1d9d1f/9e073649debe",
            ),
            // containerd with a cgroupfs path below a systemd slice.
            (
                "/system.slice/containerd.service/\
                 kubepods-burstable-pod2fc932ce_fdcc_454b_97bd_aadfdeb4c340.slice:cri-containerd:ID",
                "pod/2fc932ce-fdcc-454b-97bd-aadfdeb4c340/9e073649debe",
            ),
            // The path as a daemon that is in a pod itself sees it.
            (
                "/../../kubepods-besteffort-pod5759a1ae_36ca_48a8_b20a_b0b5c8a90fb8.slice/cri-containerd-ID.scope",
                "pod/5759a1ae-36ca-48a8-b20a-b0b5c8a90fb8/9e073649debe",
            ),
            ("/kubepods/pod31dd0274-bb43-4975-bdbc-7e10047a23f8", "pod/31dd0274-bb43-4975-bdbc-7e10047a23f8"),
        ]);
    }

    #[test]
    fn of_several_hierarchies_the_container_counts_then_what_is_no_root() {
        let docker = format!("/docker/{CONTAINER}");
        for (paths, label) in [
            (&["/", "/system.slice/a.service"][..], Some("a.service")),
            (&["/system.slice/containerd.service", &docker], Some("docker/9e073649debe")),
            (&["/system.slice/a.service", "/user.slice"], Some("a.service")),
            (&["/", "/"], Some("/")),
            (&[], None),
        ] {
            let paths: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
            assert_eq!(Cgroup::of_paths(&paths).map(|cgroup| cgroup.label).as_deref(), label, "{paths:?}");
        }
    }

    #[test]
    fn a_container_is_its_runtime_and_the_id_that_its_tools_show() {
        becomes(&[
            ("/system.slice/docker-ID.scope", "docker/9e073649debe"),
            ("/user.slice/user-1000.slice/user@1000.service/user.slice/docker-ID.scope", "docker/9e073649debe"),
            ("/docker/ID", "docker/9e073649debe"),
            ("/docker/ID/system.slice/nginx.service", "docker/9e073649debe"),
            ("/machine.slice/libpod-ID.scope/container", "podman/9e073649debe"),
            ("/machine.slice/libpod-conmon-ID.scope", "podman/9e073649debe"),
            ("/libpod_parent/libpod-ID", "podman/9e073649debe"),
            (
                "/user.slice/user-1000.slice/user@1000.service/user.slice/user-libpod_pod_x.slice/libpod-ID.scope",
                "podman/9e073649debe",
            ),
            ("/system.slice/cri-containerd-ID.scope", "containerd/9e073649debe"),
            ("/system.slice/nerdctl-ID.scope", "containerd/9e073649debe"),
            ("/system.slice/system.slice:docker:ID", "docker/9e073649debe"),
            ("/machine.slice/crio-ID.scope", "crio/9e073649debe"),
            ("/machine.slice/machine-web.scope/payload/system.slice/nginx.service", "machine/web"),
            ("/machine.slice/machine-qemu\\x2d1\\x2ddebian\\x2d12.scope/libvirt/emulator", "machine/qemu-1-debian-12"),
            ("/machine.slice/systemd-nspawn@build.service/payload", "machine/build"),
            ("/lxc.payload.web/system.slice/nginx.service", "lxc/web"),
            ("/lxc/101/ns/system.slice/postfix.service", "lxc/101"),
        ]);
    }

    #[test]
    fn else_it_is_the_innermost_unit() {
        becomes(&[
            ("/system.slice/nginx.service", "nginx.service"),
            ("/system.slice/system-postgresql.slice/postgresql@16-main.service", "postgresql@16-main.service"),
            ("/system.slice/system-redis.slice/redis@6379.service", "redis@6379.service"),
            ("/system.slice/nginx.service/workers", "nginx.service"),
            ("/system.slice", "system.slice"),
            ("/init.scope", "init.scope"),
            ("/system.slice/my\\x2dserver.service", "my-server.service"),
            ("/system.slice/100\\x2.service", "100\\x2.service"),
            ("/user.slice/user-1000.slice/user@1000.service/app.slice/syncthing.service", "syncthing.service"),
        ]);
    }

    #[test]
    fn parts_of_a_cgroup_name_that_differ_for_each_login_or_command_are_left_out() {
        becomes(&[
            ("/user.slice/user-1000.slice/session-12.scope", "user-1000.slice"),
            ("/user.slice/user-0.slice/session-c3.scope", "user-0.slice"),
            ("/user.slice/user-1000.slice/user@1000.service/init.scope", "user-1000.slice"),
            ("/user.slice/user-1000.slice/user@1000.service", "user-1000.slice"),
            (
                "/user.slice/user-1000.slice/user@1000.service/app.slice/app-gnome-firefox-4711.scope",
                "app-gnome-firefox.scope",
            ),
            (
                "/user.slice/user-1000.slice/user@1000.service/app.slice/\
                 app-org.kde.konsole-bd8cc4d7f2b84bcd9c4e8b8d1d3f6f3e.scope",
                "app-org.kde.konsole.scope",
            ),
            (
                "/user.slice/user-1000.slice/user@1000.service/app.slice/\
                 app-firefox@a1b2c3d4e5f60718293a4b5c6d7e8f90.service",
                "app-firefox.service",
            ),
            (
                "/user.slice/user-1000.slice/user@1000.service/app.slice/app-org.gnome.Terminal.slice/\
                 vte-spawn-0ab3e1e2-7a1c-4f63-9d6e-2b1a4c5d6e7f.scope",
                "vte-spawn.scope",
            ),
            (
                "/user.slice/user-1000.slice/user@1000.service/app.slice/app-gnome-my\\x2dtool-99.scope",
                "app-gnome-my-tool.scope",
            ),
            ("/system.slice/run-r0123456789abcdef0123456789abcdef.scope", "run-*.scope"),
            ("/system.slice/run-u42.service", "run-*.service"),
            ("/system.slice/run-p4711-i4712.service", "run-*.service"),
            ("/system.slice/run-4711.scope", "run-*.scope"),
            ("/system.slice/run-user.service", "run-user.service"),
            ("/system.slice/system-rsync.slice/rsync@3-4711-1000.service", "rsync.service"),
            ("/system.slice/system-sshd.slice/sshd@12-10.0.0.1:22-10.0.0.2:5555.service", "sshd.service"),
        ]);
    }

    #[test]
    fn other_paths_stay_as_they_are_but_for_their_length() {
        becomes(&[("/", "/"), ("", "/"), ("/batch/job", "/batch/job"), ("/..", "/..")]);
        becomes(&[
            (&format!("/{}", "ü".repeat(100)), &format!("/{}", "ü".repeat(63))),
            (&format!("/{}.service", "x".repeat(100)), &"x".repeat(64)),
        ]);
    }

    proptest! {
        #[test]
        fn every_path_has_a_short_label(path in "(/(pod|docker|kubepods|lxc|run-|app-|session-|machine-|libpod-|\
             x)?[-@:._\\\\0-9a-fxü]{0,70}(\\.(service|scope|slice))?){0,6}|\\PC*") {
            let label = Cgroup::of_path(&path).label;
            prop_assert!((1..=LONGEST).contains(&label.chars().count()), "{path:?} is {label:?}");
        }
    }
}
