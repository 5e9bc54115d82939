import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Scanner;

/**
 * Runs Kafka's tools one after the other. A new JVM would take a second of processor time for each.
 *
 * The argument is the name of Kafka's class Exit. Each line of standard input is a JSON list of a
 * class, its standard input and its arguments. Each line of standard output is a JSON list of the
 * exit status, the standard output and the standard error of that class.
 */
class ToolServer {
    /** With what the running tool has first called Exit.exit. Some tools catch what this throws. */
    static Integer status;

    /** What the running tool does when its JVM ends. */
    static final List<Runnable> hooks = new ArrayList<>();

    /** The standard error of the tool that has started this thread: not every tool ends its own. */
    static final ThreadLocal<OutputStream> errorsOfTool = new InheritableThreadLocal<>();

    public static void main(String[] arguments) throws Exception {
        replace(arguments[0], "Procedure", "setExitProcedure", (proxy, method, given) -> {
            if (status == null) {
                status = (Integer) given[0];
            }
            throw new Error("exit");
        });
        replace(arguments[0], "ShutdownHookAdder", "setShutdownHookAdder",
                (proxy, method, given) -> hooks.add((Runnable) given[1]));

        ObjectMapper json = new ObjectMapper();
        Scanner requests = new Scanner(System.in, StandardCharsets.UTF_8);
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setErr(new PrintStream(new OutputStream() {
            @Override
            public void write(int character) throws IOException {
                errorsOfTool.get().write(character);
            }
        }, false, StandardCharsets.UTF_8));
        while (requests.hasNextLine()) {
            String[] words = json.readValue(requests.nextLine(), String[].class);
            ByteArrayOutputStream output = new ByteArrayOutputStream();
            ByteArrayOutputStream errors = new ByteArrayOutputStream();
            System.setIn(new ByteArrayInputStream(words[1].getBytes(StandardCharsets.UTF_8)));
            System.setOut(new PrintStream(output, false, StandardCharsets.UTF_8));
            errorsOfTool.set(errors);
            status = null;
            boolean returned = run(words[0], Arrays.copyOfRange(words, 2, words.length));
            hooks.forEach(Runnable::run);
            hooks.clear();
            System.out.flush();
            System.err.flush();
            answers.println(json.writeValueAsString(List.of(
                    status != null ? status : returned ? 0 : 1,
                    output.toString(StandardCharsets.UTF_8),
                    errors.toString(StandardCharsets.UTF_8))));
        }
    }

    /** Replace what Exit does by a handler. */
    static void replace(String exit, String type, String setter, InvocationHandler handler)
            throws ReflectiveOperationException {
        Class<?> replaced = Class.forName(exit + "$" + type);
        Object proxy = Proxy.newProxyInstance(
                replaced.getClassLoader(), new Class<?>[] {replaced}, handler);
        Class.forName(exit).getMethod(setter, replaced).invoke(null, proxy);
    }

    static boolean run(String name, String[] arguments) throws ReflectiveOperationException {
        try {
            Class.forName(name).getMethod("main", String[].class).invoke(null, (Object) arguments);
            return true;
        } catch (InvocationTargetException thrown) {
            if (status == null) {
                thrown.getCause().printStackTrace();
            }
            return false;
        }
    }
}
