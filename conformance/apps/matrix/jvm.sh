# needs java javac
cat > Matrix.java <<'EOF'
import java.nio.*; import java.nio.channels.*; import java.nio.file.*; import java.util.stream.*;
public class Matrix {
    static int depth(int n) { return depth(n + 1) + 1; }
    public static void main(String[] a) throws Exception {
        System.out.println(IntStream.range(0, 1000000).parallel().mapToLong(i -> (long) i * i % 7).sum());
        int caught = 0; String s = a.length > 5 ? "" : null;
        for (int i = 0; i < 200000; i++) try { caught += s.length(); } catch (NullPointerException e) { caught++; }
        System.out.println(caught);
        try { depth(0); } catch (StackOverflowError e) { System.out.println("overflow"); }
        byte[][] keep = new byte[64][]; for (int i = 0; i < 4000; i++) keep[i % 64] = new byte[1 << 16];
        try (FileChannel f = FileChannel.open(Path.of("map"), StandardOpenOption.CREATE, StandardOpenOption.READ, StandardOpenOption.WRITE)) {
            MappedByteBuffer m = f.map(FileChannel.MapMode.READ_WRITE, 0, 1 << 20); m.putInt(4096, 42); m.force(); System.out.println(m.getInt(4096));
        }
        Process p = new ProcessBuilder("echo", "child").start(); System.out.print(new String(p.getInputStream().readAllBytes())); System.out.println(p.waitFor());
    }
}
EOF
javac Matrix.java
# run
java -Xmx128m -cp . Matrix
