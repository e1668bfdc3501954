# needs java javac
cat > Main.java <<'E'
import java.io.*; import java.nio.*; import java.nio.channels.*;
public class Main {
    int field = 7;
    static int read(Main m) { return m.field; }
    static int deep(int n) { return deep(n + 1) + 1; }
    public static void main(String[] a) throws Exception {
        Main m = new Main(); long sum = 0; int nulls = 0;
        for (int i = 0; i < 300000; i++)
            try { sum += read(i % 1000 == 999 ? null : m); } catch (NullPointerException e) { nulls++; }
        System.out.println(sum + " " + nulls);
        try { deep(0); } catch (StackOverflowError e) { System.out.println("overflow"); }
        try (RandomAccessFile f = new RandomAccessFile("data", "rw")) {
            f.setLength(1 << 16);
            MappedByteBuffer b = f.getChannel().map(FileChannel.MapMode.READ_WRITE, 0, 1 << 16);
            b.put(40000, (byte) 3); f.setLength(0);
            try { b.get(40000); System.out.println("read"); } catch (InternalError e) { System.out.println("fault"); }
        }
    }
}
E
javac Main.java
# run
java -Xshare:off Main; echo $?
java -XX:+UseSerialGC -Xint Main; echo $?
java -Xcheck:jni Main; echo $?
