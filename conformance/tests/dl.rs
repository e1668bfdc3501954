//! dlopen, dlsym and their relatives under the library: the answers are those of the loader, except that a hooked name
//! asked of a handle is the hook.

mod preload_support;

use preload_support::{app, library, limited, output, target, text};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Mutex;

/// Layer 1 needs layer 2, so that RTLD_NEXT of the one finds the other.
fn layer(n: u32, needs: &[&str]) -> PathBuf {
    // Both layers are compiled to one name first.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock();
    let dir = target().join("apps");
    std::fs::create_dir_all(&dir).expect("make target/apps");
    let file = app("dl_layer", &[&["-shared", "-fPIC", &format!("-DLAYER={n}")], needs].concat());
    let own = dir.join(format!("dl_layer_{n}.{:?}.so", std::thread::current().id()));
    std::fs::copy(file, &own).expect("copy the layer");
    own
}

fn run(program: &Path, args: &[&Path], env: &[(&str, &Path)]) -> Output {
    let args: Vec<&str> = args.iter().map(|p| p.to_str().expect("UTF-8")).collect();
    let mut c = limited(program.to_str().expect("UTF-8"), &args);
    c.envs(env.iter().copied());
    let out = output(c);
    assert!(out.status.success(), "{env:?}: {out:?}");
    out
}

#[test]
fn the_loader_answers_what_it_always_answers() {
    let two = layer(2, &[]);
    let one = layer(1, &["-Wl,--no-as-needed", two.to_str().expect("UTF-8"), "-Wl,--enable-new-dtags,-rpath,$ORIGIN"]);
    let program = app("dl", &["-rdynamic"]);
    let plain = text(&run(&program, &[&one, &two], &[]).stdout);
    assert!(plain.contains("chain 142\nrunpath ok\n") && plain.contains("own creat64 dl_layer_2"), "{plain}");
    let lib = library();
    let now = Path::new("1");
    for env in [&[("LD_PRELOAD", lib.as_path())][..], &[("LD_PRELOAD", &lib), ("LD_BIND_NOW", now)]] {
        assert_eq!(plain, text(&run(&program, &[&one, &two], env).stdout), "{env:?}");
    }
    // A copy under another name, alone and beside the first; then the first once more through a link.
    let dir = target().join("apps").join(format!("elsewhere.{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("make a directory");
    let (copy, link) = (dir.join("other"), dir.join("link"));
    std::fs::copy(&lib, &copy).expect("copy the library");
    std::os::unix::fs::symlink(lib.canonicalize().expect("the library"), &link).expect("link it");
    let with = |second: &Path| PathBuf::from(format!("{}:{}", lib.display(), second.display()));
    for preload in [copy.clone(), with(&copy), with(&link)] {
        assert_eq!(plain, text(&run(&program, &[&one, &two], &[("LD_PRELOAD", &preload)]).stdout), "{preload:?}");
    }
    std::fs::remove_dir_all(dir).expect("clean up");
}

#[test]
fn a_hooked_name_asked_of_libc_is_the_hook() {
    let (two, program, lib) = (layer(2, &[]), app("dl", &["-rdynamic"]), library());
    let plain = text(&run(&program, &[&two], &[]).stdout);
    assert_eq!(plain, "open libc.so.6\ndlsym libc.so.6\nmalloc libc.so.6\ngetpid libc.so.6\ncreat64 64\nwho 2\n");
    let hooked = text(&run(&program, &[&two], &[("LD_PRELOAD", &lib)]).stdout);
    let name = lib.file_name().expect("a name").to_str().expect("UTF-8");
    // RTLD_DEEPBIND stays: the object sees its own `who`.
    assert_eq!(hooked, format!("open {name}\ndlsym {name}\nmalloc {name}\ngetpid libc.so.6\ncreat64 64\nwho 2\n"));
    let off = [("LD_PRELOAD", lib.as_path()), ("LIBSMC_DISABLE", Path::new("1"))];
    assert_eq!(plain, text(&run(&program, &[&two], &off).stdout), "switched off");
}
