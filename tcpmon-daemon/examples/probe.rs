use tcpmon::{kernel::*, decode::Event};
fn main() {
    let t=std::time::Instant::now();
    let trace = std::env::args().nth(1).map(|p| TraceFilter{tgids: p.split(',').filter_map(|x| x.parse().ok()).collect(), ..Default::default()});
    let mut k = match Kernel::load(Options{trace, max_readers:4096, max_drop_entries:4096, ring_bytes: 1<<20}) { Ok(k)=>k, Err(e)=>{println!("{e}"); std::process::exit(3)} };
    println!("loaded in {:?}", t.elapsed());
    for p in k.probes() { println!("{p:?}"); }
    for (n,s) in k.raw().unwrap().programs { println!("{n} {}", s.verified_instructions); }
    for _ in 0..20 {
        std::thread::sleep(std::time::Duration::from_millis(500));
        k.drain(10000, |e| if let Event::Timeslice(t)=&e { println!("slice {} on {} wait {} off {} on {} read {} q {}", t.tid, t.on_cpu_ns, t.wait_ns, t.arrived_off_cpu_bytes, t.arrived_on_cpu_bytes, t.read_bytes, t.deactivation.rcv_nxt.wrapping_sub(t.deactivation.copied_seq)) } else { println!("{e:?}") }).unwrap();
        let t=std::time::Instant::now(); let mut n=0;
        k.sockets(|r| {n+=1; let c=&r.state.counters; if c.received_bytes>0 {println!("{:?} recv {} read {} seg {} ticks {} q {} rmem {} edges {:?}", tcpmon::decode::name(&r.state.process), c.received_bytes, c.read_bytes, c.segments, c.queue_byte_ticks, r.live.rcv_nxt.wrapping_sub(r.live.copied_seq), r.live.rmem, c.fills.iter().fold([0u32;3],|a,b|[a[0]+b[0],a[1]+b[1],a[2]+b[2]]))}}).unwrap();
        let a=t.elapsed(); let raw=k.raw().unwrap();
        println!("{n} sockets {a:?} {:?} readers {} lost {:?}", t.elapsed(), raw.readers.len(), raw.lost);
    }
}
