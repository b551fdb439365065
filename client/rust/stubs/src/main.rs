//! Makes the stubs: `cargo run -p tieline-stubs -- PROTOS FOLDER`, with a protoc in `PROTOC`.

use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(protos), Some(folder)) = (arguments.next(), arguments.next()) else {
        panic!("usage: tieline-stubs PROTOS FOLDER");
    };
    let services = ["service", "models"].map(|name| protos.join(format!("tieline/v1/{name}.proto")));
    tonic_prost_build::configure().out_dir(folder).compile_protos(&services, &[protos])
}
