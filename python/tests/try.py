import sys,time,random
from supervisor import Supervisor
kills=int(sys.argv[1]); seed=int(sys.argv[2]); args=sys.argv[3:]
rng=random.Random(seed)
def ends(s):
    return sorted(l for l in s.outputs().splitlines() if l.startswith("end "))
if __name__=="__main__":
    world=2; 
    with Supervisor("train_ddp.py",world,spares=kills,arguments=args) as s:
        t0=time.time()
        s.run_until(lambda: len([p for p in s.processes if p.connection])==world+kills)
        last=0
        for k in range(kills):
            at=last+rng.randrange(1,12)
            s.run_until(lambda: any(p.step>=at and p.is_ready for p in s.processes) or s.codes)
            if s.codes: print("over"); break
            v=rng.randrange(world); time.sleep(rng.random()*0.02); r=s.round; s.kill(v); s.run_until(lambda: s.round>r and all(p.is_ready for p in s.processes if p.seat is not None)); 
            last=s.seated(0).step; print("kill rank",v,"recovered",[p.step for p in s.processes if p.seat is not None],round(time.monotonic()-s.killed_at,3))
        s.finish(); print(time.time()-t0)
        print("\n".join(ends(s)))
        if "-v" in sys.argv or kills>90: print(s.outputs())
        for l in s.log: print(l)
