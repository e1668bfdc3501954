# needs perl
# run
cat > p.pl <<'EOF'
use IPC::Open2; use Socket; use POSIX; $| = 1;
$SIG{ALRM} = sub { print "alarm\n" }; alarm 1; select undef, undef, undef, 1.5;
my $pid = open2(my $o, my $i, "sort", "-n"); print $i join("\n", reverse 1 .. 500), "\n"; close $i; my @l = <$o>; waitpid $pid, 0; print scalar(@l), " $?\n";
socketpair(A, B, AF_UNIX, SOCK_STREAM, PF_UNSPEC) or die; if (!fork) { close A; syswrite B, "from child\n"; POSIX::_exit(5) } close B; print <A>; wait; print $? >> 8, "\n";
my %h = map { $_ => $_ ** 2 } 1 .. 50000; print $h{777}, " ", scalar(keys %h), "\n";
open F, "+>", "f" or die; print F "abc"; seek F, 1, 0; read F, my $b, 5; print "$b\n"; truncate F, 1; print -s F, "\n";
eval { die { code => 7 } }; print $@->{code}, "\n"; my $x = "a" x (1 << 20); $x =~ s/a(?=a)/b/g; print length $x, "\n"; printf "%s\n", unpack "H*", pack "nN", 1, 2;
my ($r, $w) = POSIX::pipe(); POSIX::write($w, "pipe", 4); POSIX::read($r, my $c, 10); print "$c\n";
POSIX::sigaction(SIGUSR1, POSIX::SigAction->new(sub { print "usr1\n" })); kill USR1 => $$; print POSIX::dup2(1, 9), "\n"; print floor(2.7), "\n";
EOF
perl p.pl
