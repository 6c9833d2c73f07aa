// The version of governor that Cargo.lock has, for the result.
fn main() {
    let lock = std::fs::read_to_string("Cargo.lock").unwrap_or_default();
    let mut found = "?".to_string();
    let mut lines = lock.lines();
    while let Some(line) = lines.next() {
        if line == "name = \"governor\"" {
            let next = lines.next().unwrap_or("");
            found = next.trim_start_matches("version = ").trim_matches('"').to_string();
        }
    }
    println!("cargo:rustc-env=GOVERNOR_VERSION={found}");
}
